#include "data/data_faults.h"

#include <algorithm>
#include <cstdlib>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

// Between the fields of text(): no message has it, since what is quoted from a file is printable.
constexpr char kEnd = '\0';

std::string advice_of(const std::vector<DataFault>& faults, const char* before) {
  std::vector<std::string> known;
  std::string text;
  for (const DataFault& fault : faults) {
    if (!fault.advice.empty() && std::ranges::find(known, fault.advice) == known.end()) {
      known.push_back(fault.advice);
      text += before + fault.advice;
    }
  }
  return text;
}

}  // namespace

void DataFaults::add(const std::function<DataFault()>& fault) {
  if (room() > 0) {
    shown_.push_back(fault());
  }
  ++count_;
}

void DataFaults::append(const DataFaults& later) {
  for (const DataFault& fault : later.shown_) {
    if (room() > 0) {
      shown_.push_back(fault);
    }
  }
  count_ += later.count_;
}

std::string DataFaults::text() const {
  std::string text = std::to_string(count_) + kEnd;
  for (const DataFault& fault : shown_) {
    text += std::to_string(fault.offset) + kEnd + fault.message + kEnd + fault.advice + kEnd;
  }
  return text;
}

DataFaults DataFaults::of_text(const std::string& text) {
  std::size_t at = 0;
  const auto next = [&] {
    const std::size_t end = std::min(text.find(kEnd, at), text.size());
    std::string field = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
    return field;
  };
  DataFaults faults;
  faults.count_ = std::strtoll(next().c_str(), nullptr, 10);
  while (at < text.size()) {
    DataFault fault;
    fault.offset = std::strtoll(next().c_str(), nullptr, 10);
    fault.message = next();
    fault.advice = next();
    faults.shown_.push_back(std::move(fault));
  }
  return faults;
}

void DataFaults::throw_error(const MappedFile& file) const {
  if (count_ == 1) {
    throw_text_error(
        file, file.begin() + shown_[0].offset, shown_[0].message + advice_of(shown_, "; "));
  }
  std::string text = concat(file.path(), ": ", count_, " errors");
  const char* counted = file.begin();  // lines up to here are counted
  std::int64_t line = 1;
  const char* line_begin = file.begin();
  for (const DataFault& fault : shown_) {
    const char* const place = file.begin() + fault.offset;
    for (const char* newline; (newline = std::find(counted, place, '\n')) != place;) {
      ++line;
      line_begin = counted = newline + 1;
    }
    counted = std::max(counted, place);
    text += concat("\n  {}:{}:{}: {}", {file.path(), line, place - line_begin + 1, fault.message});
  }
  const std::int64_t rest = count_ - static_cast<std::int64_t>(shown_.size());
  text += rest > 0 ? concat("\n  and ", rest, " more") : "";
  throw DataError(file.path(), shown_[0].offset, text + advice_of(shown_, "\n"));
}

}  // namespace trireme::detail
