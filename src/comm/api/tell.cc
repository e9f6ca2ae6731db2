#include "trireme/comm/tell.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;

// FNV-1a: the same on every machine, which std::hash does not promise.
std::int64_t fingerprint_of(const std::vector<std::string>& lines) {
  std::uint64_t value = 0xCBF29CE484222325ULL;
  for (const std::string& line : lines) {
    for (std::size_t i = 0; i <= line.size(); ++i) {  // where a line ends counts, too
      value = (value ^ static_cast<unsigned char>(line.c_str()[i])) * 0x100000001B3ULL;
    }
  }
  return static_cast<std::int64_t>(value);
}

// --- an exception as a text: a letter for its kind, what a DataError has besides, what it says

template <class Kind>
bool is(const std::exception& error) {
  return dynamic_cast<const Kind*>(&error) != nullptr;
}

char kind_of(const std::exception& error) {
  return is<ConfigError>(error)                                ? 'c'
         : is<MemoryError>(error) || is<std::bad_alloc>(error) ? 'm'
         : is<CheckpointError>(error)                          ? 'k'
         : is<DataError>(error)                                ? 'd'
                                                               : 'o';
}

std::string packed(const std::exception& error) {
  const auto* data = dynamic_cast<const DataError*>(&error);
  return concat(kind_of(error),
                data != nullptr ? data->offset() : -1,
                '\0',
                data != nullptr ? data->file() : "",
                '\0',
                detail::reason_of(error));
}

[[noreturn]] void throw_packed(const std::string& packed, std::ptrdiff_t rank) {
  const std::size_t file = packed.find('\0') + 1;
  const std::size_t words = packed.find('\0', file) + 1;
  const std::string text = concat("rank ", rank, ": ", packed.substr(words));
  const std::string path = packed.substr(file, words - 1 - file);
  switch (packed[0]) {
    case 'c':
      throw ConfigError(text);
    case 'm':
      throw MemoryError(text);
    case 'k':
      throw CheckpointError(path, std::stoll(packed.substr(1)), text);
    case 'd':
      throw DataError(path, std::stoll(packed.substr(1)), text);
    default:
      throw Error(text);
  }
}

}  // namespace

std::vector<std::string> all_texts(Communicator& ranks, const std::string& mine) {
  const auto bytes = static_cast<std::int64_t>(mine.size());
  Counts sizes(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather({&bytes, 1, Dtype::kInt64}, sizes).wait();
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::string all(static_cast<std::size_t>(total), '\0');
  if (total > 0) {
    ranks.all_gather({mine.data(), bytes, Dtype::kUint8}, {all.data(), total, Dtype::kUint8}, sizes)
        .wait();
  }
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t size : sizes) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(size)));
    at += static_cast<std::size_t>(size);
  }
  return texts;
}

void on_all_ranks(Communicator& ranks, const std::function<void()>& action) {
  std::string mine;
  std::exception_ptr thrown;
  try {
    action();
  } catch (const CommError&) {
    throw;  // everyone is told
  } catch (const std::exception& error) {
    mine = packed(error);
    thrown = std::current_exception();
  }
  const std::vector<std::string> texts = all_texts(ranks, mine);
  const auto first =
      std::find_if(texts.begin(), texts.end(), [](const auto& text) { return !text.empty(); });
  if (first == texts.end()) {
    return;
  }
  if (thrown && mine[0] == (*first)[0]) {
    std::rethrow_exception(thrown);
  }
  throw_packed(*first, first - texts.begin());
}

void check_same_on_all_ranks(Communicator& ranks,
                             const std::string& what,
                             const std::vector<std::string>& lines,
                             const std::string& advice) {
  const std::vector<std::int64_t> mine = {fingerprint_of(lines),
                                          static_cast<std::int64_t>(lines.size())};
  std::vector<std::int64_t> everyone(2 * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(mine, everyone).wait();
  for (std::size_t rank = 1; 2 * rank < everyone.size(); ++rank) {
    if (everyone[2 * rank] == everyone[0] && everyone[2 * rank + 1] == everyone[1]) {
      continue;
    }
    // All ranks are here, with the same `rank`: find where its list leaves that of rank 0.
    const auto shorter = static_cast<std::size_t>(std::min(everyone[1], everyone[2 * rank + 1]));
    std::vector<std::string> texts;
    for (std::size_t i = 0; i <= shorter && (i == 0 || texts[0] == texts[rank]); ++i) {
      texts = all_texts(ranks, i < lines.size() ? lines[i] : "nothing more");
    }
    throw ConfigError(concat("{} differs between ranks: rank 0 has {} where rank {} has {}: {}",
                             {what, texts[0], rank, texts[rank], advice}));
  }
}

}  // namespace trireme
