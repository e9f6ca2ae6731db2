// Announcements, and the small inputs in them, by recursive doubling: in round k every rank passes
// on all it knows to the one 2^k before it. Fewer messages than telling everyone, where there are
// many ranks; nothing is added up on the way, so every rank adds up in rank order at the end.

#include <cstring>
#include <vector>

#include "comm/algo/algorithms.h"

namespace trireme::detail {
namespace {

// In a message: a rank, the length of its announcement, the announcement.
struct Entry {
  std::uint32_t rank;
  std::uint32_t bytes;
};

}  // namespace

Steps announce_by_doubling(NetCall& call) {
  const int size = call.size();
  const int rank = call.rank();
  Channel& channel = call.channel();
  // Announcements in the order in which they are passed on: of rank, rank + 1, rank + 2, ...
  std::vector<std::vector<std::byte>> known(1);
  known[0].assign(call.mine().begin(), call.mine().end());
  for (int distance = 1; distance < size; distance <<= 1) {
    const int count = std::min(distance, size - distance);
    const int to = (rank + size - distance) % size;
    const int from = (rank + distance) % size;
    std::vector<std::byte> out;
    for (int i = 0; i < count; ++i) {
      const auto& announcement = known[static_cast<std::size_t>(i)];
      const Entry entry{static_cast<std::uint32_t>((rank + i) % size),
                        static_cast<std::uint32_t>(announcement.size())};
      const auto* bytes = reinterpret_cast<const std::byte*>(&entry);
      out.insert(out.end(), bytes, bytes + sizeof(entry));
      out.insert(out.end(), announcement.begin(), announcement.end());
    }
    const std::size_t most =
        static_cast<std::size_t>(count) * (sizeof(Entry) + call.most_announcement_bytes());
    const auto in = std::make_unique_for_overwrite<std::byte[]>(most);
    std::memset(in.get(), 0, sizeof(Entry));
    RequestSet requests(channel);
    requests.add(
        from,
        channel.receive(from, Channel::Stream::kCall, in.get(), most, Transport::Length::kUpTo));
    requests.add(
        to,
        channel.send(to, Channel::Stream::kCall, out.data(), out.size(), Transport::Length::kUpTo));
    co_await Completed(requests);
    const std::byte* at = in.get();
    for (int i = 0; i < count; ++i) {
      Entry entry{};
      std::memcpy(&entry, at, sizeof(entry));
      at += sizeof(entry);
      known.emplace_back(at, at + entry.bytes);
      call.take(static_cast<int>(entry.rank), known.back());
      at += entry.bytes;
    }
  }
}

}  // namespace trireme::detail
