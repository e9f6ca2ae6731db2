#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/queue/backend.h"
#include "comm/queue/steps.h"
#include "trireme/comm/work.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// An operation of a part of the world has finished. What it waits for and why it fails is told in
// the ranks of the whole.
class PartDone final : public Condition {
 public:
  // `world_rank`: of a rank of the part. `name`: of a rank of the world, where the part's own words
  // for a lost one leave its machine out.
  PartDone(Work work,
           std::function<int(int)> world_rank,
           std::function<std::string(int)> name = {});
  PartDone(const PartDone&) = delete;
  PartDone& operator=(const PartDone&) = delete;
  ~PartDone() override { work_.forget(); }

  bool ready() override;
  std::vector<int> missing() override;

 private:
  CommError of_the_world(const CommError& error) const;

  Work work_;
  std::function<int(int)> world_rank_;
  std::function<std::string(int)> name_;
};

}  // namespace trireme::detail
