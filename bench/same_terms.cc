#include "same_terms.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include <malloc.h>

namespace trireme::bench {
namespace {

constexpr std::pair<const char*, const char*> kKeepFreed[] = {
    {"MALLOC_MMAP_MAX_", "0"},
    {"MALLOC_TRIM_THRESHOLD_", "1099511627776"},
    {"MALLOC_TOP_PAD_", "67108864"},
};

}  // namespace

void set_same_terms() {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    setenv(name, "1", 1);
  }
  for (const auto& [name, value] : kKeepFreed) {
    setenv(name, value, 1);
  }
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

std::string same_terms_text() {
  std::string text = "every system: 1 thread per rank, ranks on even shares of the processors,";
  for (const auto& [name, value] : kKeepFreed) {
    text += std::string(" ") + name + "=" + value;
  }
  return text + "\n";
}

}  // namespace trireme::bench
