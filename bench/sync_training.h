#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sync_mode.h"
#include "trireme/comm/communicator.h"
#include "trireme/models/gpt.h"

namespace trireme::bench {

// A model that is trained in one of the modes, whatever that takes.
class SyncTraining {
 public:
  virtual ~SyncTraining() = default;
  // How many of a step's micro-batches this rank computes.
  virtual std::int64_t micro_batches() const = 0;
  // One micro-batch; the last one of a step ends it.
  virtual void compute(const at::Tensor& loss) = 0;
  // Of exact training: who computes how many, from the next step on.
  virtual void deal(const std::vector<std::int64_t>& micro_batches);
  // After the last step, on all ranks: nothing is on its way any more.
  virtual void finish() {}
  // By this rank to others so far, as the mode itself counts it: of stale training, gradients
  // alone.
  virtual std::int64_t sent_bytes() const = 0;
};

// `micro_batches`: of a step, over all ranks.
std::unique_ptr<SyncTraining> make_training(const SyncMode& mode,
                                            const models::Gpt& model,
                                            std::int64_t micro_batches,
                                            const std::shared_ptr<Communicator>& world);

}  // namespace trireme::bench
