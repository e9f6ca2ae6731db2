#include "observe/event_encoding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "observe/utf8.h"
#include "trireme/observe/event_file.h"

namespace trireme::detail {
namespace {

// Field numbers, from TensorFlow's event.proto, summary.proto and tensor.proto.
namespace event {
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
}  // namespace event
namespace value {
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;
}  // namespace value

constexpr std::uint64_t kLongestRecord = std::uint64_t{1} << 40;

constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kBytes = 2;
constexpr int kFixed32 = 5;

template <class Word>
void append_little_endian(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    out += static_cast<char>(word >> (8 * i) & 0xFF);
  }
}

void append_varint(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) {
    out += static_cast<char>((number & 0x7F) | 0x80);
  }
  out += static_cast<char>(number);
}

void append_key(std::string& out, int field, int kind) {
  append_varint(out, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind));
}

void append_integer(std::string& out, int field, std::int64_t number) {
  append_key(out, field, kVarint);
  append_varint(out, static_cast<std::uint64_t>(number));
}

void append_double(std::string& out, int field, double number) {
  append_key(out, field, kFixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(number));
}

void append_float(std::string& out, int field, float number) {
  append_key(out, field, kFixed32);
  append_little_endian(out, std::bit_cast<std::uint32_t>(number));
}

void append_bytes(std::string& out, int field, const std::string& bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_doubles(std::string& out, int field, const std::vector<double>& numbers) {
  append_key(out, field, kBytes);
  append_varint(out, numbers.size() * sizeof(double));
  for (const double number : numbers) {
    append_little_endian(out, std::bit_cast<std::uint64_t>(number));
  }
}

// An event with one value in its summary; `content` is what the value holds beside its tag.
std::string summary_event(const EventTime& time,
                          const std::string& tag,
                          const std::string& content) {
  std::string tagged;
  append_bytes(tagged, value::kTag, valid_utf8(tag));
  tagged += content;
  std::string summary;
  append_bytes(summary, 1, tagged);
  std::string result;
  append_double(result, event::kWallTime, time.wall_seconds);
  append_integer(result, event::kStep, time.step);
  append_bytes(result, event::kSummary, summary);
  return result;
}

// TensorFlow's default limits: 0, +-1e-12 * 1.1^k below 1e20, and the largest number.
std::vector<double> make_bucket_limits() {
  std::vector<double> positive;
  double limit = 1e-12;
  while (limit < 1e20) {
    positive.push_back(limit);
    limit *= 1.1;
  }
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits(positive.rbegin(), positive.rend());
  for (double& negative : limits) {
    negative = -negative;
  }
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

struct Buckets {
  std::vector<double> limits;  // the upper end of each
  std::vector<double> counts;
};

// The buckets that hold anything, what is between them, and an empty one before the first: readers
// take each limit for the lower end of the next bucket. Runs of empty buckets become one.
Buckets buckets_in_use(const std::vector<double>& limits, const std::vector<double>& counts) {
  const auto in_use = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), in_use);
  if (first == counts.end()) {
    return {{std::numeric_limits<double>::max()}, {0}};
  }
  const auto last = std::find_if(counts.rbegin(), counts.rend(), in_use).base();
  Buckets result;
  for (auto count = first - 1; count != last; ++count) {
    const double limit = limits[static_cast<std::size_t>(count - counts.begin())];
    if (*count == 0 && !result.counts.empty() && result.counts.back() == 0) {
      result.limits.back() = limit;
    } else {
      result.limits.push_back(limit);
      result.counts.push_back(*count);
    }
  }
  return result;
}

std::uint32_t masked_crc(const std::string& bytes) {
  const std::uint32_t crc =
      crc32c({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

}  // namespace

std::string version_event(double wall_seconds) {
  std::string result;
  append_double(result, event::kWallTime, wall_seconds);
  append_bytes(result, event::kFileVersion, "brain.Event:2");
  return result;
}

std::string session_start_event(const EventTime& time) {
  constexpr int kStatus = 1;
  constexpr int kStart = 1;  // SessionLog.START
  std::string log;
  append_integer(log, kStatus, kStart);
  std::string result;
  append_double(result, event::kWallTime, time.wall_seconds);
  append_integer(result, event::kStep, time.step);
  append_bytes(result, event::kSessionLog, log);
  return result;
}

std::string scalar_event(const EventTime& time, const std::string& tag, double number) {
  std::string content;
  append_float(content, value::kSimpleValue, static_cast<float>(number));
  return summary_event(time, tag, content);
}

std::string histogram_event(const EventTime& time,
                            const std::string& tag,
                            std::span<const float> values) {
  static const std::vector<double> limits = make_bucket_limits();
  std::vector<double> counts(limits.size());
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  double count = 0;
  double sum = 0;
  double squares = 0;
  for (const float single : values) {
    const double number = single;
    if (!std::isfinite(number)) {
      continue;
    }
    least = std::min(least, number);
    most = std::max(most, number);
    count += 1;
    sum += number;
    squares += number * number;
    const auto bucket = std::upper_bound(limits.begin(), limits.end(), number);
    counts[static_cast<std::size_t>(bucket - limits.begin())] += 1;
  }
  const Buckets buckets = buckets_in_use(limits, counts);
  std::string histogram;
  append_double(histogram, 1, count > 0 ? least : 0);
  append_double(histogram, 2, count > 0 ? most : 0);
  append_double(histogram, 3, count);
  append_double(histogram, 4, sum);
  append_double(histogram, 5, squares);
  append_doubles(histogram, 6, buckets.limits);
  append_doubles(histogram, 7, buckets.counts);
  std::string content;
  append_bytes(content, value::kHistogram, histogram);
  return summary_event(time, tag, content);
}

std::string text_event(const EventTime& time, const std::string& tag, const std::string& text) {
  constexpr int kStringType = 7;   // DataType.DT_STRING
  constexpr int kTensorClass = 2;  // DataClass.DATA_CLASS_TENSOR
  std::string dimension;
  append_integer(dimension, 1, 1);
  std::string shape;
  append_bytes(shape, 2, dimension);
  std::string tensor;
  append_integer(tensor, 1, kStringType);
  append_bytes(tensor, 2, shape);
  append_bytes(tensor, 8, valid_utf8(text));
  std::string plugin;
  append_bytes(plugin, 1, "text");
  std::string metadata;
  append_bytes(metadata, 1, plugin);
  append_integer(metadata, 4, kTensorClass);
  std::string content;
  append_bytes(content, value::kMetadata, metadata);
  append_bytes(content, value::kTensor, tensor);
  return summary_event(time, tag, content);
}

std::uint64_t record_bytes(std::span<const std::uint8_t, kRecordHead> head) {
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < sizeof(length); ++i) {
    length |= static_cast<std::uint64_t>(head[i]) << (8 * i);
  }
  for (std::size_t i = 0; i < sizeof(crc); ++i) {
    crc |= static_cast<std::uint32_t>(head[sizeof(length) + i]) << (8 * i);
  }
  const bool good = crc == masked_crc(std::string(head.begin(), head.begin() + sizeof(length)));
  return good && length < kLongestRecord ? length + kRecordHead + sizeof(crc) : 0;
}

std::string record_of(const std::string& event) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  return record;
}

}  // namespace trireme::detail
