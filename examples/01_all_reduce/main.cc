// Several ranks add up their tensors and take an average, in their own memory and in shared memory.
//
//   cmake --build build/release --target examples
//   trireme run -n 4 build/release/bin/01_all_reduce
//
//   [0] rank 0 of 4, started by trireme run
//   [0] sum of the ranks' numbers:         10 10 10
//   [0] average of 1 million shared ones:  2.5
//   [0] my part of a scattered sum:        elements 0 to 2 of 10, each 10
//   (ranks 1 to 3 print the same, with their own part of the last line)

#include <iostream>
#include <sstream>

#include <trireme/trireme.h>

#include <torch/torch.h>

int main() {
  auto world = trireme::init();
  std::ostringstream out;
  out << "rank " << world->rank() << " of " << world->size() << ", started by " << world->launcher()
      << "\n";

  // Any contiguous CPU tensor will do.
  auto numbers = torch::full({3}, static_cast<float>(world->rank() + 1));
  world->all_reduce(numbers).wait();
  out << "sum of the ranks' numbers:         " << numbers[0].item<float>() << " "
      << numbers[1].item<float>() << " " << numbers[2].item<float>() << "\n";

  // A tensor in shared memory is reduced in place, with no copy in or out.
  auto shared = trireme::shared_tensor(*world, {1'000'000});
  shared.fill_(static_cast<float>(world->rank() + 1));
  auto work = world->all_reduce(shared, trireme::ReduceOp::kAverage);
  // ... something else could happen here ...
  work.wait();
  out << "average of 1 million shared ones:  " << shared[999'999].item<float>() << "\n";

  // Ten elements over any number of ranks: nothing is padded, nothing is lost.
  auto whole = torch::full({10}, static_cast<float>(world->rank() + 1));
  const auto mine = trireme::even_range(10, world->size(), world->rank());
  auto part = torch::empty({mine.size()});
  world->reduce_scatter(whole, part).wait();
  out << "my part of a scattered sum:        elements " << mine.begin << " to " << mine.end - 1
      << " of 10, each " << (part.numel() > 0 ? part[0].item<float>() : 0.0F) << "\n";

  std::cout << out.str() << std::flush;
}
