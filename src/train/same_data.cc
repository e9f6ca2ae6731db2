#include "train/same_data.h"

#include "train/train_progress.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme::detail {

std::int64_t fingerprint_of_all_ranks(const Parts& data, Communicator& ranks) {
  const std::int64_t fingerprint = fingerprint_of(data);
  check_same_on_all_ranks(ranks,
                          "data: what was read",
                          {concat("{} samples to train on and {} to evaluate",
                                  {data.train->size(), data.held_out ? data.held_out->size() : 0}),
                           concat("samples with the checksum ", fingerprint)},
                          "use the same files on every machine");
  return fingerprint;
}

}  // namespace trireme::detail
