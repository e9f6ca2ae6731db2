#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "data/batch_layout.h"
#include "data/data_failure.h"
#include "data/mapped_file.h"
#include "trireme/data/readers.h"

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::kByte:
      return 1;
    case TokenType::kUint16:
      return 2;
    case TokenType::kUint32:
      return 4;
  }
  return 1;
}

// Widens `count` tokens (anywhere in memory: a file has no alignment) and returns the largest.
template <class Token>
std::int64_t widen(const char* from, std::int64_t count, std::int64_t* out) {
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Token token = 0;
    std::memcpy(&token, from + i * static_cast<std::int64_t>(sizeof(Token)), sizeof(Token));
    out[i] = token;
    largest = std::max<std::int64_t>(largest, token);
  }
  return largest;
}

std::int64_t widen(TokenType type, const char* from, std::int64_t count, std::int64_t* out) {
  switch (type) {
    case TokenType::kByte:
      return widen<std::uint8_t>(from, count, out);
    case TokenType::kUint16:
      return widen<std::uint16_t>(from, count, out);
    case TokenType::kUint32:
      return widen<std::uint32_t>(from, count, out);
  }
  return 0;
}

// One file of the row of files that makes up the text.
struct Section {
  std::unique_ptr<detail::MappedFile> file;
  std::int64_t begin = 0;  // number of its first token in the whole
  std::int64_t end = 0;
};

std::vector<Section> map_sections(const std::vector<std::string>& files, TokenType type) {
  std::vector<Section> sections;
  std::int64_t begin = 0;
  for (const std::string& path : files) {
    auto file = std::make_unique<detail::MappedFile>(path);
    const std::int64_t rest = file->size() % bytes_of(type);
    if (rest != 0) {
      detail::throw_data_error(path,
                               file->size() - rest,
                               "expected tokens of ",
                               bytes_of(type),
                               " bytes, found the end of the file after ",
                               rest,
                               " of them: it is cut short, or its tokens have another size");
    }
    const std::int64_t end = begin + file->size() / bytes_of(type);
    sections.push_back({std::move(file), begin, end});
    begin = end;
  }
  return sections;
}

class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::vector<std::string>& files, const TokenOptions& options)
      : type_(options.type),
        stride_(options.stride > 0 ? options.stride : options.sequence),
        sections_(map_sections(files, options.type)) {
    shape_.kind = SampleKind::kTokens;
    shape_.length = options.sequence + 1;
    shape_.classes = options.vocabulary > 0 ? options.vocabulary : find_vocabulary();
    for (const Section& section : sections_) {
      section.file->advise_random_reads();
    }
    choose_part(options);
  }

  std::int64_t size() const override { return size_; }
  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t) const override {
    throw ConfigError("tokens have no class per sample: sample and divide them without classes");
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    std::int64_t* out = batch.tokens.data();
    for (const std::int64_t sample : samples) {
      copy(first_ + sample * stride_, shape_.length, out);
      out += shape_.length;
    }
  }

 private:
  std::int64_t find_vocabulary() const {
    if (type_ == TokenType::kByte) {
      return 256;
    }
    std::int64_t largest = 0;
    std::vector<std::int64_t> scratch(1 << 14);
    for (const Section& section : sections_) {
      section.file->advise_one_pass();
      const auto step = static_cast<std::int64_t>(scratch.size());
      for (std::int64_t at = section.begin; at < section.end; at += step) {
        largest = std::max(largest,
                           widen(type_,
                                 section.file->begin() + (at - section.begin) * bytes_of(type_),
                                 std::min(step, section.end - at),
                                 scratch.data()));
      }
    }
    return largest + 1;
  }

  // Samples follow each other at the stride from the start of the part. A tail shorter than one
  // sample is left out, so that all samples have one length; with stride == sequence every token of
  // the part but the first, and but that tail, is predicted exactly once.
  void choose_part(const TokenOptions& options) {
    const auto total = static_cast<double>(sections_.back().end);
    // The same rounding for `begin` and `end`: parts that meet at a fraction meet at a token.
    first_ = std::llround(total * options.begin);
    const std::int64_t tokens = std::llround(total * options.end) - first_;
    if (tokens < shape_.length) {
      const Section& section = sections_.back();
      detail::throw_data_error(
          section.file->path(),
          section.file->size(),
          "expected at least ",
          shape_.length,
          " tokens (one sample: a sequence of ",
          shape_.length - 1,
          " and the token after it), found ",
          tokens,
          options.begin > 0 || options.end < 1 ? " in this part of the data" : "",
          sections_.size() > 1 ? detail::concat(" (", sections_.size(), " files together)") : "",
          ": use a shorter sequence or more data");
    }
    size_ = (tokens - shape_.length) / stride_ + 1;
  }

  // A sample may begin in one file and end in another.
  void copy(std::int64_t first, std::int64_t count, std::int64_t* out) const {
    auto section = std::upper_bound(
        sections_.begin(), sections_.end(), first, [](std::int64_t token, const Section& s) {
          return token < s.end;
        });
    while (count > 0) {
      const std::int64_t here = std::min(count, section->end - first);
      const std::int64_t offset = (first - section->begin) * bytes_of(type_);
      if (widen(type_, section->file->begin() + offset, here, out) >= shape_.classes) {
        refuse_token(*section, offset, out);
      }
      out += here;
      first += here;
      count -= here;
      ++section;
    }
  }

  [[noreturn]] void refuse_token(const Section& section,
                                 std::int64_t offset,
                                 const std::int64_t* tokens) const {
    while (*tokens < shape_.classes) {
      ++tokens;
      offset += bytes_of(type_);
    }
    detail::throw_data_error(section.file->path(),
                             offset,
                             "expected a token below ",
                             shape_.classes,
                             " (the vocabulary), found ",
                             *tokens,
                             ": use the tokenizer's whole vocabulary, or check the size and byte "
                             "order of the tokens");
  }

  TokenType type_;
  std::int64_t stride_;
  std::vector<Section> sections_;
  SampleShape shape_{};
  std::int64_t first_ = 0;  // token at which sample 0 begins
  std::int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<Dataset> open_tokens(const std::vector<std::string>& files,
                                     const TokenOptions& options) {
  TRIREME_CHECK(!files.empty(), "tokens need at least one file, found none");
  TRIREME_CHECK(
      options.sequence >= 1, "a sequence has at least one token, found ", options.sequence);
  TRIREME_CHECK(options.stride >= 0, "the stride cannot be negative, found ", options.stride);
  TRIREME_CHECK(
      options.vocabulary >= 0, "the vocabulary cannot be negative, found ", options.vocabulary);
  TRIREME_CHECK(options.begin >= 0 && options.begin < options.end && options.end <= 1,
                "a part of the tokens needs 0 <= begin < end <= 1, found begin ",
                options.begin,
                " and end ",
                options.end);
  return std::make_shared<TokenDataset>(files, options);
}

}  // namespace trireme
