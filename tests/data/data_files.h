#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/processes.h"
#include "trireme/core/error.h"

// Small files of data for tests.

namespace trireme::testing {

class DataFolder {
 public:
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

inline std::string big_endian(std::uint32_t number) {
  return {static_cast<char>(number >> 24),
          static_cast<char>(number >> 16),
          static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

// The byte of pixel `pixel` of image `image` in the files below.
inline unsigned char pixel_of(std::int64_t image, std::int64_t pixel) {
  return static_cast<unsigned char>((image * 37 + pixel * 11 + 5) % 256);
}

inline std::string idx_images(std::uint32_t images, std::uint32_t rows, std::uint32_t columns) {
  std::string bytes =
      big_endian(0x803) + big_endian(images) + big_endian(rows) + big_endian(columns);
  for (std::uint32_t image = 0; image < images; ++image) {
    for (std::uint32_t pixel = 0; pixel < rows * columns; ++pixel) {
      bytes += static_cast<char>(pixel_of(image, pixel));
    }
  }
  return bytes;
}

inline std::string idx_labels(const std::vector<int>& labels) {
  std::string bytes = big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size()));
  for (const int label : labels) {
    bytes += static_cast<char>(label);
  }
  return bytes;
}

template <class Token>
std::string token_bytes(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

// Expects a DataError about this file and byte whose message has all these words.
inline void expect_data_error(const std::function<void()>& action,
                              const std::string& file,
                              std::int64_t offset,
                              const std::vector<std::string>& words) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown for " << file;
  } catch (const DataError& error) {
    EXPECT_EQ(error.file(), file) << error.what();
    EXPECT_EQ(error.offset(), offset) << error.what();
    const std::string message = error.what();
    EXPECT_NE(message.find(file), std::string::npos) << message;
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "\"" << word << "\" in: " << message;
    }
  }
}

}  // namespace trireme::testing
