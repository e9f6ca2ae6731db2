#pragma once

// Everything a program needs. Programs that care about build time include the parts.

#include "trireme/average/averaging.h"      // replicas that are averaged now and then
#include "trireme/average/phased_engine.h"  // exact and averaged phases of one training
#include "trireme/comm/communicator.h"      // collectives, messages, shared buffers
#include "trireme/comm/elastic.h"           // jobs that outlive the loss of ranks
#include "trireme/comm/world.h"             // init() and World
#include "trireme/compress/compressor.h"    // how gradients travel
#include "trireme/core/error.h"             // what is thrown
#include "trireme/core/random.h"
#include "trireme/core/version.h"
#include "trireme/data/loader.h"
#include "trireme/data/source.h"  // readers, samplers
#include "trireme/models/recompute.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/optim/schedule.h"
#include "trireme/parallel/autocast.h"
#include "trireme/parallel/data_parallel.h"        // DDP beside your own torch::optim
#include "trireme/parallel/engine.h"               // DDP and ZeRO
#include "trireme/parallel/micro_batch_sampler.h"  // for torch::data
#include "trireme/parallel/running_statistics.h"
#include "trireme/parallel/sharded_model.h"  // models too large for one rank
#include "trireme/parallel/sync_batch_norm.h"
#include "trireme/server/stale_engine.h"  // asynchronous and bounded-stale training
#include "trireme/settings/train_settings.h"
#include "trireme/shard/range.h"           // how elements are divided among ranks
#include "trireme/tensor/shared_tensor.h"  // tensors in memory that ranks share
#include "trireme/tensor/span.h"           // lets collectives take tensors
#include "trireme/tensor/torch_cuda.h"     // models on GPUs
#include "trireme/train/checkpoints.h"     // saving and resuming
#include "trireme/train/elastic_state.h"   // what they go on with
#include "trireme/train/map_reduce.h"      // functions of partitions of data
#include "trireme/train/trainer.h"         // the training loop
