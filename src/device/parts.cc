#include "device/parts.h"

#include <algorithm>

namespace trireme::device {
namespace {

std::size_t pages_of(std::size_t bytes, std::size_t page) {
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page;
}

}  // namespace

std::size_t Parts::bytes() const {
  std::size_t total = 0;
  for (const Block& block : blocks) {
    total += block.bytes;
  }
  return total;
}

std::size_t Parts::made_by(int maker) const {
  return static_cast<std::size_t>(std::ranges::count(blocks, maker, &Block::maker));
}

Parts separate_parts(int rank, int size, std::size_t bytes, std::size_t page) {
  Parts parts{.rank = rank, .blocks = {}, .begins = {0}};
  const std::size_t each = pages_of(bytes, page) * page;
  for (int maker = 0; maker < size; ++maker) {
    parts.blocks.push_back({each, maker, maker, maker});
    parts.begins.push_back(parts.begins.back() + each);
  }
  return parts;
}

Parts adjoining_parts(int rank, std::span<const std::int64_t> bytes, std::size_t page) {
  Parts parts{.rank = rank, .blocks = {}, .begins = {0}};
  for (const std::int64_t part : bytes) {
    parts.begins.push_back(parts.begins.back() + static_cast<std::size_t>(part));
  }
  // Bytes of a rank's part in [begin, end).
  const auto within = [&](int of, std::size_t begin, std::size_t end) {
    const auto at = static_cast<std::size_t>(of);
    const std::size_t first = std::max(parts.begins[at], begin);
    const std::size_t last = std::min(parts.begins[at + 1], end);
    return last > first ? last - first : 0;
  };
  const auto append = [&](const Block& block) {
    Block* const before = parts.blocks.empty() ? nullptr : &parts.blocks.back();
    if (before != nullptr && before->first_writer == block.first_writer &&
        before->last_writer == block.last_writer && before->maker == block.maker) {
      before->bytes += block.bytes;
    } else {
      parts.blocks.push_back(block);
    }
  };
  const std::size_t pages = pages_of(parts.begins.back(), page);
  int first = 0;  // who writes the page at hand
  for (std::size_t at = 0; at < pages * page;) {
    while (first + 1 < parts.size() && parts.begins[static_cast<std::size_t>(first) + 1] <= at) {
      ++first;
    }
    // Pages that one rank alone writes at once: there may be more of them than can be counted, in a
    // model that no machine has room for.
    const std::size_t end = parts.begins[static_cast<std::size_t>(first) + 1];
    if (end >= at + page) {
      const std::size_t whole = (end - at) / page * page;
      append({whole, first, first, first});
      at += whole;
      continue;
    }
    Block block{page, first, first, first};
    for (int other = first + 1; other < parts.size(); ++other) {
      if (within(other, at, at + page) > 0) {
        block.last_writer = other;
        if (within(other, at, at + page) > within(block.maker, at, at + page)) {
          block.maker = other;
        }
      } else if (parts.begins[static_cast<std::size_t>(other)] >= at + page) {
        break;
      }
    }
    append(block);
    at += page;
  }
  return parts;
}

}  // namespace trireme::device
