#include "parallel/model/same_on_all_ranks.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>

#include <c10/util/Exception.h>

#include "trireme/comm/first_failure.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// FNV-1a: the same on every machine, which std::hash does not promise.
class Fingerprint {
 public:
  void add(const std::string& text) {
    for (const char c : text) {
      add_byte(static_cast<unsigned char>(c));
    }
    add_byte(0);  // where a line ends counts, too
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001B3ULL; }
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

// The text of rank `from`, on every rank.
std::string broadcast_text(std::string text, int from, Communicator& ranks) {
  std::vector<std::int64_t> size = {static_cast<std::int64_t>(text.size())};
  ranks.broadcast(size, from).wait();
  text.resize(static_cast<std::size_t>(size[0]));
  ranks.broadcast({text.data(), size[0], Dtype::kUint8}, from).wait();
  return text;
}

// Failures as all ranks hear of them: one letter for the kind, then the text.
constexpr char kConfig = 'c';
constexpr char kMemory = 'm';
constexpr char kOther = 'o';

}  // namespace

void all_or_none(Communicator& ranks, const std::function<void()>& action) {
  std::string problem;
  std::exception_ptr thrown;
  const auto keep = [&](char kind, const std::string& text) {
    problem = kind + text;
    thrown = std::current_exception();
  };
  try {
    action();
  } catch (const CommError&) {
    throw;  // everyone is told
  } catch (const ConfigError& error) {
    keep(kConfig, error.what());
  } catch (const MemoryError& error) {
    keep(kMemory, error.what());
  } catch (const std::bad_alloc& error) {
    keep(kMemory, error.what());
  } catch (const c10::Error& error) {
    keep(kOther, error.what_without_backtrace());
  } catch (const std::exception& error) {
    keep(kOther, error.what());
  }
  const auto failure = first_failure(ranks, problem);
  if (!failure) {
    return;
  }
  if (thrown) {
    std::rethrow_exception(thrown);
  }
  const std::string text =
      concat("rank ", failure->rank, " of ", ranks.size(), ": ", failure->reason.substr(1));
  switch (failure->reason[0]) {
    case kConfig:
      throw ConfigError(text);
    case kMemory:
      throw MemoryError(text);
    default:
      throw Error(text);
  }
}

void check_same_on_all_ranks(const std::string& what,
                             const std::vector<std::string>& lines,
                             const std::string& advice,
                             Communicator& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  Fingerprint all;
  for (const std::string& line : lines) {
    all.add(line);
  }
  const std::vector<std::int64_t> mine = {all.value(), static_cast<std::int64_t>(lines.size())};
  std::vector<std::int64_t> everyone(2 * size);
  ranks.all_gather(mine, everyone).wait();
  for (std::size_t rank = 1; rank < size; ++rank) {
    if (everyone[2 * rank] == everyone[0] && everyone[2 * rank + 1] == everyone[1]) {
      continue;
    }
    // All ranks are here, with the same `rank`: find where its list leaves that of rank 0.
    const auto count = std::min(everyone[1], everyone[2 * rank + 1]);
    std::string texts[2];
    for (std::int64_t i = 0; i <= count; ++i) {
      const std::string own = i < static_cast<std::int64_t>(lines.size())
                                  ? lines[static_cast<std::size_t>(i)]
                                  : "nothing more";
      texts[0] = broadcast_text(own, 0, ranks);
      texts[1] = broadcast_text(own, static_cast<int>(rank), ranks);
      if (texts[0] != texts[1]) {
        break;
      }
    }
    throw ConfigError(concat(what,
                             " differs between ranks: rank 0 has ",
                             texts[0],
                             " where rank ",
                             rank,
                             " has ",
                             texts[1],
                             ": ",
                             advice));
  }
}

}  // namespace trireme::detail
