#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// How memory that several processes share is divided: arithmetic only.

namespace trireme::device {

// Pages of shared memory that one process makes. Those whose parts are in it write to it: one
// process, or neighbours that meet in its page. All others can only read it.
struct Block {
  std::size_t bytes = 0;
  int maker = 0;
  int first_writer = 0;
  int last_writer = 0;

  bool written_by(int rank) const { return rank >= first_writer && rank <= last_writer; }
  friend bool operator==(const Block&, const Block&) = default;
};

// Memory of which each of several processes has a part, rank after rank: blocks that are mapped
// one behind the other.
struct Parts {
  int rank = 0;  // of this process
  std::vector<Block> blocks;
  std::vector<std::size_t> begins;  // of each part, and the end of the last

  int size() const { return static_cast<int>(begins.size()) - 1; }
  std::size_t bytes() const;  // of all blocks
  // How many blocks a rank makes, each of which it offers a descriptor of.
  std::size_t made_by(int maker) const;
};

// Parts of `bytes` each, in pages of their own.
Parts separate_parts(int rank, int size, std::size_t bytes, std::size_t page);

// Parts with nothing between them, of so many bytes by rank. Where one ends inside a page, that
// page is written by all who have something in it, and made by the one who has most of it: so no
// more than one page is taken in vain, however many ranks there are.
Parts adjoining_parts(int rank, std::span<const std::int64_t> bytes, std::size_t page);

}  // namespace trireme::device
