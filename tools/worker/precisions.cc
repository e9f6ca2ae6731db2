#include <cstdio>

#include <ATen/Parallel.h>

#include "trireme/launch/launcher.h"
#include "trireme/train/half_speed.h"
#include "worker.h"

namespace trireme::worker {

int measure_precisions() {
  at::set_num_threads(1);  // as a rank has
  std::printf("bfloat16 %.3g float16 %.3g\n",
              slowdown_of_precision(TrainPrecision::kBFloat16),
              slowdown_of_precision(TrainPrecision::kFloat16));
  return kExitOk;
}

}  // namespace trireme::worker
