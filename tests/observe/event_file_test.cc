#include "trireme/observe/event_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;

// CRC-32C a bit at a time, straight from the definition of the polynomial division.
std::uint32_t slow_crc(const std::string& bytes) {
  std::uint32_t rest = 0xFFFFFFFF;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::uint32_t next = (static_cast<std::uint8_t>(byte) >> bit) & 1;
      rest = (rest >> 1) ^ (((rest ^ next) & 1) != 0 ? 0x82F63B78 : 0);
    }
  }
  return ~rest;
}

std::uint32_t crc_of(const std::string& bytes) {
  return crc32c({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

template <class T>
T word_at(const std::string& bytes, std::size_t at) {
  T word{};
  EXPECT_LE(at + sizeof(T), bytes.size());
  std::memcpy(&word, bytes.data() + at, sizeof(T));
  return word;
}

// The records of a file, with their checksums checked; a last one that is not whole is left out.
std::vector<std::string> records_of(const std::string& file) {
  const auto masked = [](const std::string& bytes) {
    const std::uint32_t crc = slow_crc(bytes);
    return static_cast<std::uint32_t>(((crc >> 15) | (crc << 17)) + 0xA282EAD8);
  };
  std::vector<std::string> records;
  std::size_t at = 0;
  while (at + 12 <= file.size()) {
    const auto length = word_at<std::uint64_t>(file, at);
    EXPECT_EQ(word_at<std::uint32_t>(file, at + 8), masked(file.substr(at, 8)));
    if (at + 16 + length > file.size()) {
      break;
    }
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(word_at<std::uint32_t>(file, at + 12 + length), masked(records.back()));
    at += 16 + length;
  }
  return records;
}

// One field of a message: a number, or bytes.
struct Field {
  std::uint64_t number = 0;
  std::string bytes;

  double as_double() const { return word_at<double>(bytes, 0); }
  float as_float() const { return word_at<float>(bytes, 0); }
  std::vector<double> as_doubles() const {
    std::vector<double> result;
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      result.push_back(word_at<double>(bytes, at));
    }
    return result;
  }
};

// A protocol buffer message as its fields by number, each at most once.
std::map<int, Field> parse(const std::string& message) {
  std::map<int, Field> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t result = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(message[at++]);
      result |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) {
        break;
      }
    }
    return result;
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    Field field;
    switch (key & 7) {
      case 0:
        field.number = varint();
        break;
      case 1:
        field.bytes = message.substr(at, 8);
        at += 8;
        break;
      case 2: {
        const std::uint64_t length = varint();
        field.bytes = message.substr(at, length);
        at += length;
        break;
      }
      case 5:
        field.bytes = message.substr(at, 4);
        at += 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    EXPECT_TRUE(fields.emplace(static_cast<int>(key >> 3), field).second);
  }
  return fields;
}

// The value in the summary of an event.
std::map<int, Field> value_of(const std::string& record) {
  return parse(parse(parse(record).at(5).bytes).at(1).bytes);
}

TEST(Crc32c, HasTheStandardsCheckValue) {
  EXPECT_EQ(crc_of("123456789"), 0xE3069283u);
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  const std::string text = "any other bytes \xFF\x80";
  EXPECT_EQ(crc_of(text), slow_crc(text));
}

TEST(EventFile, HoldsAVersionThenScalars) {
  const TemporaryFolder folder;
  std::string path;
  {
    EventFile file(folder.path() + "/not/there/yet");
    path = file.path();
    file.add_scalar("loss/train", 3, 2.5);
    file.add_scalar("bad", std::int64_t{1} << 40, std::nan(""));
  }
  EXPECT_NE(path.find("/events.out.tfevents."), std::string::npos);
  EXPECT_TRUE(path.ends_with(".trireme"));
  const auto records = records_of(read_file(path));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(parse(records[0]).at(3).bytes, "brain.Event:2");
  const auto event = parse(records[1]);
  EXPECT_NEAR(event.at(1).as_double(), static_cast<double>(time(nullptr)), 60);
  EXPECT_EQ(event.at(2).number, 3u);
  EXPECT_EQ(value_of(records[1]).at(1).bytes, "loss/train");
  EXPECT_EQ(value_of(records[1]).at(2).as_float(), 2.5F);
  EXPECT_EQ(parse(records[2]).at(2).number, std::uint64_t{1} << 40);
  EXPECT_TRUE(std::isnan(value_of(records[2]).at(2).as_float()));
}

TEST(EventFile, HistogramsCountEveryFiniteValueInItsBucket) {
  const TemporaryFolder folder;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {
      0, 0, 1, -1, 0.5F, 1e-20F, 3e38F, -3e38F, std::nanf(""), infinity, -infinity, 1.04F};
  EventFile file(folder.path());
  file.add_histogram("weights", 7, values);
  file.flush();
  const auto records = records_of(read_file(file.path()));
  ASSERT_EQ(records.size(), 2u);
  const auto histogram = parse(value_of(records[1]).at(5).bytes);
  EXPECT_EQ(histogram.at(1).as_double(), -3e38F);
  EXPECT_EQ(histogram.at(2).as_double(), 3e38F);
  EXPECT_EQ(histogram.at(3).as_double(), 9);
  const auto limits = histogram.at(6).as_doubles();
  const auto counts = histogram.at(7).as_doubles();
  ASSERT_EQ(limits.size(), counts.size());
  EXPECT_TRUE(std::is_sorted(limits.begin(), limits.end()));
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0), 9);
  double sum = 0;
  double squares = 0;
  for (std::size_t bucket = 0; bucket < limits.size(); ++bucket) {
    double expected = 0;
    const double low = bucket == 0 ? -std::numeric_limits<double>::infinity() : limits[bucket - 1];
    for (const float value : values) {
      expected += std::isfinite(value) && value >= low && value < limits[bucket] ? 1 : 0;
    }
    EXPECT_EQ(counts[bucket], expected) << "below " << limits[bucket];
    EXPECT_FALSE(bucket > 0 && counts[bucket] == 0 && counts[bucket - 1] == 0);
  }
  for (const double value : values) {
    sum += std::isfinite(value) ? value : 0;
    squares += std::isfinite(value) ? value * value : 0;
  }
  EXPECT_DOUBLE_EQ(histogram.at(4).as_double(), sum);
  EXPECT_DOUBLE_EQ(histogram.at(5).as_double(), squares);
}

TEST(EventFile, HistogramBucketsAreTensorFlowsOwn) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.add_histogram("one", 0, std::vector<float>{1.0F});
  file.flush();
  const auto histogram = parse(value_of(records_of(read_file(file.path())).at(1)).at(5).bytes);
  double limit = 1e-12;
  while (limit <= 1) {
    limit *= 1.1;
  }
  const auto limits = histogram.at(6).as_doubles();
  EXPECT_EQ(limits.back(), limit);  // the same products, in the same order
  EXPECT_DOUBLE_EQ(limits.at(limits.size() - 2), limit / 1.1);
}

TEST(EventFile, HistogramsOfNothingAreEmpty) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.add_histogram("none", 0, {});
  file.add_histogram("bad", 0, std::vector<float>{std::nanf("")});
  file.flush();
  const auto records = records_of(read_file(file.path()));
  ASSERT_EQ(records.size(), 3u);
  for (const std::size_t i : {1, 2}) {
    const auto histogram = parse(value_of(records[i]).at(5).bytes);
    EXPECT_EQ(histogram.at(3).as_double(), 0);
    EXPECT_EQ(histogram.at(7).as_doubles(), std::vector<double>{0});
  }
}

TEST(EventFile, TextIsATensorOfTheTextPlugin) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  const std::string text = "**settings**\n" + std::string(300, 'x');
  file.add_text("config", 1, text);
  file.add_text("tag \xFF", 1, "cut \xC3");
  file.flush();
  const auto records = records_of(read_file(file.path()));
  const auto value = value_of(records.at(1));
  EXPECT_EQ(parse(parse(value.at(9).bytes).at(1).bytes).at(1).bytes, "text");
  const auto tensor = parse(value.at(8).bytes);
  EXPECT_EQ(tensor.at(1).number, 7u);  // DT_STRING
  EXPECT_EQ(parse(parse(tensor.at(2).bytes).at(2).bytes).at(1).number, 1u);
  EXPECT_EQ(tensor.at(8).bytes, text);
  // Bytes that are no UTF-8 would make readers drop the file.
  const auto mended = value_of(records.at(2));
  EXPECT_EQ(mended.at(1).bytes, "tag \xEF\xBF\xBD");
  EXPECT_EQ(parse(mended.at(8).bytes).at(8).bytes, "cut \xEF\xBF\xBD");
}

TEST(EventFile, BuffersUntilItIsFlushed) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.add_scalar("loss", 1, 1);
  EXPECT_EQ(records_of(read_file(file.path())).size(), 1u);
  file.flush();
  EXPECT_EQ(records_of(read_file(file.path())).size(), 2u);
}

TEST(EventFile, TwoInOneFolderHaveTheirOwnNames) {
  const TemporaryFolder folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
}

// A process that is lost may leave half a record. Where anything else is wrong with the file, or
// where there is none, nothing of it is touched.
TEST(EventFile, GoesOnInTheNewestFileAfterItsLastWholeRecord) {
  using Into = EventFile::Into;
  const TemporaryFolder folder;
  const EventFile first(folder.path(), 1, Into::kNewestFile);
  EXPECT_EQ(records_of(read_file(first.path())).size(), 2U) << "a version and a start";
  EventFile lost(folder.path());
  lost.add_scalar("loss", 1, 0.5);
  lost.add_scalar("loss", 2, 0.25);
  lost.flush();
  std::filesystem::resize_file(lost.path(), std::filesystem::file_size(lost.path()) - 3);
  EventFile next(folder.path(), 2, Into::kNewestFile);
  EXPECT_EQ(next.path(), lost.path());
  next.add_scalar("loss", 2, 0.125);
  next.flush();
  const std::vector<std::string> records = records_of(read_file(next.path()));
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(parse(records[1]).at(2).number, 1U);
  EXPECT_EQ(parse(parse(records[2]).at(7).bytes).at(1).number, 1U) << "the session starts";
  EXPECT_EQ(parse(records[2]).at(2).number, 2U);
  EXPECT_EQ(value_of(records[3]).at(2).as_float(), 0.125F);

  std::string damaged = read_file(next.path());
  damaged[1] ^= 1;
  std::ofstream(next.path(), std::ios::binary) << damaged;
  const EventFile another(folder.path(), 3, Into::kNewestFile);
  EXPECT_NE(another.path(), next.path());
  EXPECT_EQ(read_file(next.path()), damaged);
}

TEST(EventFile, SaysWhyAFolderCannotBeUsed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  close(open(path.c_str(), O_WRONLY | O_CREAT, 0600));
  const std::string message = message_of<Error>([&] { const EventFile file(path); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("directory"), std::string::npos) << message;
}

// The descriptor under which this process has the file open.
int descriptor_of(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path(), ignored) == path) {
      return std::stoi(entry.path().filename().string());
    }
  }
  ADD_FAILURE() << path << " is not open";
  return -1;
}

TEST(EventFile, ReportsAFullDiskAndGoesOnWhenThereIsRoom) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  const int fd = descriptor_of(file.path());
  const int real = dup(fd);
  const int full = open("/dev/full", O_WRONLY);
  dup2(full, fd);
  file.add_scalar("loss", 1, 0.5);
  const std::string message = message_of<Error>([&] { file.flush(); });
  EXPECT_NE(message.find(file.path()), std::string::npos) << message;
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  // A trainer that ignores it must not fill the memory instead: adding fails too, in the end.
  const std::string text(1 << 18, 'x');
  EXPECT_THROW(
      for (int i = 0; i < 100; ++i) { file.add_text("long", i, text); }, Error);
  dup2(real, fd);
  file.add_scalar("loss", 2, 0.25);
  file.flush();
  const auto records = records_of(read_file(file.path()));
  ASSERT_GT(records.size(), 3u);
  EXPECT_EQ(value_of(records[1]).at(2).as_float(), 0.5F);
  EXPECT_EQ(value_of(records.back()).at(2).as_float(), 0.25F);
  close(real);
  close(full);
}

TEST(EventFile, WhatWasWrittenBeforeAFailureStaysReadable) {
  const TemporaryFolder folder;
  signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  EventFile file(folder.path());
  // Ends in the middle of a record.
  const rlimit small{1000, usual.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (int step = 0; step < 100; ++step) {
    file.add_scalar("loss", step, step);
  }
  const std::string message = message_of<Error>([&] { file.flush(); });
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  const std::size_t readable = records_of(read_file(file.path())).size();
  EXPECT_GT(readable, 5u);
  EXPECT_LT(readable, 100u);
  setrlimit(RLIMIT_FSIZE, &usual);
  file.flush();  // from the very byte at which it stopped
  const auto records = records_of(read_file(file.path()));
  ASSERT_EQ(records.size(), 101u);
  EXPECT_EQ(value_of(records[100]).at(2).as_float(), 99.0F);
}

TEST(EventFile, LogsWhatItCouldNotSayWhenItEnds) {
  const TemporaryFolder folder;
  ::testing::internal::CaptureStderr();
  {
    EventFile file(folder.path());
    file.add_scalar("loss", 1, 1);
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, descriptor_of(file.path()));
    close(full);
  }
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("No space left on device"), std::string::npos) << logged;
}

}  // namespace
}  // namespace trireme
