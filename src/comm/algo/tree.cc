// A broadcast down a binomial tree, in pieces: a rank passes a piece on while the next one comes.

#include <vector>

#include "comm/algo/algorithms.h"
#include "comm/algo/pieces.h"

namespace trireme::detail {

Steps tree_broadcast(NetCall& call, AllAnnounced& announced) {
  const Operation& op = call.operation();
  const int size = call.size();
  // The root is number 0 of the tree. A number's parent is the number without its lowest bit; its
  // children have one more bit below that.
  const int number = (call.rank() - op.root + size) % size;
  int lowest = 1;
  while (lowest < size && (number & lowest) == 0) {
    lowest <<= 1;
  }
  const auto rank_of = [&](int other) { return (other + op.root) % size; };
  std::vector<int> children;
  for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
    if (number + bit < size) {
      children.push_back(rank_of(number + bit));
    }
  }
  Channel& channel = call.channel();
  const ConstSpan source = call.rank() == op.root ? op.input : op.output;
  const Pieces pieces({0, op.total}, call.element());
  std::vector<RequestSet> arriving = request_sets(channel, pieces.count());
  if (number != 0) {
    const int parent = rank_of(number - (number & -number));
    for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
      arriving[piece].receive(parent,
                              Channel::Stream::kData,
                              op.output.part(pieces[piece].begin, pieces[piece].size()));
    }
  }
  RequestSet sends(channel);
  for (std::size_t piece = 0; piece < pieces.count(); ++piece) {
    co_await Completed(arriving[piece]);
    for (const int child : children) {
      sends.send(
          child, Channel::Stream::kData, source.part(pieces[piece].begin, pieces[piece].size()));
    }
  }
  co_await announced;
  co_await Completed(sends);
}

}  // namespace trireme::detail
