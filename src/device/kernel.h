#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/update.h"

namespace trireme::device {

// Work that one room alone needs, for `Stream::run`: a class in a text that the host's compiler
// reads and a device's, with
//   struct Arguments;  // `blocks` and what else it is told: numbers, and addresses in the device's
//   memory struct Shared;     // what the threads of a block have together static void run(const
//   Arguments& arguments, Count block, Shared& shared);
// which is called for every block from 0 to `blocks`, in any order. What it may call is in
// host/kernel_words.h and cuda/kernels/blocks.cuh: `each(body)`, above all, calls body(thread) for
// all kThreads threads, and what one of them has written there, all see behind it; `count(body)`
// also says of how many it was true. Nothing lives in a thread from one call to the next. Each
// operation is rounded on its own, by both compilers.
//
//   stream.run(block_kernel<Int8Encode>("Int8Encode", compress_texts(), arguments));
struct BlockKernel {
  const char* name;                   // of the class
  std::span<const SourceText> texts;  // where it is written, in the order in which to read them
  const void* arguments = nullptr;    // an Arguments, read before a call returns
  std::size_t bytes = 0;
  std::int64_t blocks = 0;
  // The same on the host, in a device's memory that is the host's.
  void (*on_host)(const void* arguments) = nullptr;
};

}  // namespace trireme::device
