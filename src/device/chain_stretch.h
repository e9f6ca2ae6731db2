#pragma once

#include <cstdint>

#include "device/sum_chain.h"

namespace trireme::device {

// The end of the stretch that begins with element `at`, in which all elements have the same terms.
inline std::int64_t next_change(const SumChain& chain, std::int64_t at) {
  std::int64_t end = chain.range.end;
  for (const Term& term : chain.terms) {
    end = term.next_change(at, end);
  }
  return chain.accumulator != nullptr ? chain.accumulator->next_change(at, end) : end;
}

}  // namespace trireme::device
