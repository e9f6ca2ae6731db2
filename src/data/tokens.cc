#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "data/batch_layout.h"
#include "data/contiguous.h"
#include "data/data_failure.h"
#include "data/gzip.h"
#include "trireme/data/readers.h"

namespace trireme {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

std::int64_t bytes_of(TokenType type) {
  return type == TokenType::kByte ? 1 : type == TokenType::kUint16 ? 2 : 4;
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
    // Not make_unique, which would have to move it.
    std::unique_ptr<detail::MappedFile> file(new detail::MappedFile(detail::plain_file(path)));
    const std::int64_t rest = file->size() % bytes_of(type);
    if (rest != 0) {
      detail::throw_data_error(
          path,
          file->size() - rest,
          detail::concat("expected tokens of {} bytes, found the end of the file after {} of them: "
                         "it is cut short, or its tokens have another size",
                         {bytes_of(type), rest}));
    }
    const std::int64_t end = begin + file->size() / bytes_of(type);
    sections.push_back({std::move(file), begin, end});
    begin = end;
  }
  return sections;
}

// A run of tokens that belongs to the dataset.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Tokens [from, to) of those in `stretches`, counted through all of them.
std::vector<Stretch> cut(const std::vector<Stretch>& stretches,
                         std::int64_t from,
                         std::int64_t to) {
  std::vector<Stretch> result;
  std::int64_t before = 0;
  for (const Stretch& stretch : stretches) {
    const std::int64_t begin = std::max(stretch.begin, stretch.begin + from - before);
    const std::int64_t end = std::min(stretch.end, stretch.begin + to - before);
    if (begin < end) {
      result.push_back({begin, end});
    }
    before += stretch.end - stretch.begin;
  }
  return result;
}

class TokenDataset final : public detail::ContiguousDataset {
 public:
  TokenDataset(const std::vector<std::string>& files, const TokenOptions& options)
      : type_(options.type),
        stride_(options.stride > 0 ? options.stride : options.sequence),
        sections_(std::make_shared<const std::vector<Section>>(map_sections(files, options.type))) {
    shape_.kind = SampleKind::kTokens;
    shape_.length = options.sequence + 1;
    shape_.classes = options.vocabulary > 0 ? options.vocabulary : find_vocabulary();
    choose_part(options);
    if (options.vocabulary > 0) {
      check_tokens();
    }
    for (const Section& section : *sections_) {
      section.file->advise_random_reads();
    }
  }

  std::int64_t size() const override { return size_; }

  Parts hold_out_stretch(double begin, double end) const override {
    std::int64_t total = 0;
    for (const Stretch& stretch : stretches_) {
      total += stretch.end - stretch.begin;
    }
    const std::int64_t from = std::llround(static_cast<double>(total) * begin);
    const std::int64_t to = std::llround(static_cast<double>(total) * end);
    const std::int64_t gap = shape_.length - 1;
    auto held_out = std::make_shared<TokenDataset>(*this);
    held_out->stride_ = gap;
    held_out->take(cut(stretches_, from, to));
    auto train = std::make_shared<TokenDataset>(*this);
    std::vector<Stretch> rest = cut(stretches_, 0, from - gap);
    const std::vector<Stretch> after = cut(stretches_, to + gap, total);
    rest.insert(rest.end(), after.begin(), after.end());
    train->take(rest);
    for (const auto& [part, name] :
         {std::pair(train, "train on"), std::pair(held_out, "evaluate on")}) {
      if (part->size_ == 0) {
        throw_too_short(detail::concat("none left to {} when tokens {} to {} of {} are held out",
                                       {name, from, to, total}));
      }
    }
    return {std::move(train), std::move(held_out)};
  }

  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t) const override {
    throw ConfigError("tokens have no class per sample: sample and divide them without classes");
  }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    std::int64_t* out = batch.tokens.data();
    for (const std::int64_t sample : samples) {
      copy(first_token(sample), shape_.length, out);
      out += shape_.length;
    }
  }

 private:
  std::int64_t find_vocabulary() const {
    if (type_ == TokenType::kByte) {
      return 256;
    }
    std::int64_t largest = 0;
    std::vector<std::int64_t> scratch(kAtOnce);
    for (const Section& section : *sections_) {
      section.file->advise_one_pass();
      for (std::int64_t at = section.begin; at < section.end; at += kAtOnce) {
        largest = std::max(largest,
                           widen(type_,
                                 section.file->begin() + (at - section.begin) * bytes_of(type_),
                                 std::min(kAtOnce, section.end - at),
                                 scratch.data()));
      }
    }
    return largest + 1;
  }

  // A pass over this part of the text, which is read only while it is used: a token outside the
  // vocabulary would end a training at its last evaluation, with nothing to show for it.
  void check_tokens() const {
    if (shape_.classes >= std::int64_t{1} << (8 * bytes_of(type_))) {
      return;  // no token of this size is outside
    }
    for (const Section& section : *sections_) {
      section.file->advise_one_pass();
    }
    std::vector<std::int64_t> scratch(kAtOnce);
    for (const Stretch& stretch : stretches_) {
      for (std::int64_t at = stretch.begin; at < stretch.end; at += kAtOnce) {
        copy(at, std::min(kAtOnce, stretch.end - at), scratch.data());
      }
    }
  }

  void choose_part(const TokenOptions& options) {
    const auto total = static_cast<double>(sections_->back().end);
    // The same rounding for `begin` and `end`: parts that meet at a fraction meet at a token.
    const std::int64_t begin = std::llround(total * options.begin);
    const std::int64_t end = std::llround(total * options.end);
    take({{begin, end}});
    if (size_ == 0) {
      throw_too_short(detail::concat(
          end - begin, options.begin > 0 || options.end < 1 ? " in this part of the data" : ""));
    }
  }

  // Samples follow each other at the stride from the start of each stretch. A tail shorter than one
  // sample is left out, so that all samples have one length; with stride == sequence every token of
  // a stretch but the first, and but that tail, is predicted exactly once.
  void take(const std::vector<Stretch>& stretches) {
    stretches_.clear();
    size_ = 0;
    for (const Stretch& stretch : stretches) {
      const std::int64_t tokens = stretch.end - stretch.begin;
      if (tokens >= shape_.length) {
        stretches_.push_back(stretch);
        size_ += samples_in(stretch);
      }
    }
  }

  std::int64_t samples_in(const Stretch& stretch) const {
    return (stretch.end - stretch.begin - shape_.length) / stride_ + 1;
  }

  std::int64_t first_token(std::int64_t sample) const {
    auto stretch = stretches_.begin();
    while (sample >= samples_in(*stretch)) {  // they are few
      sample -= samples_in(*stretch++);
    }
    return stretch->begin + sample * stride_;
  }

  [[noreturn]] void throw_too_short(const std::string& found) const {
    const Section& section = sections_->back();
    detail::throw_data_error(
        section.file->path(),
        section.file->size(),
        "expected at least ",
        shape_.length,
        " tokens (one sample: a sequence of ",
        shape_.length - 1,
        " and the token after it), found ",
        found,
        sections_->size() > 1 ? detail::concat(" (", sections_->size(), " files together)") : "",
        ": use a shorter sequence or more data");
  }

  // A sample may begin in one file and end in another.
  void copy(std::int64_t first, std::int64_t count, std::int64_t* out) const {
    auto section = std::upper_bound(
        sections_->begin(), sections_->end(), first, [](std::int64_t token, const Section& s) {
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
    detail::throw_data_error(
        section.file->path(),
        offset,
        detail::concat("expected a token below {} (the vocabulary), found {}: use {}",
                       {shape_.classes,
                        *tokens,
                        type_ == TokenType::kByte
                            ? "a vocabulary of 256, which a text of bytes has by default"
                            : "the tokenizer's whole vocabulary, or check the size and byte order "
                              "of the tokens"}));
  }

  // Tokens that a pass looks at together.
  static constexpr std::int64_t kAtOnce = 1 << 14;

  TokenType type_;
  std::int64_t stride_;
  std::shared_ptr<const std::vector<Section>> sections_;
  SampleShape shape_{};
  std::vector<Stretch> stretches_;  // each holds one sample at least
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
                "a part of the tokens needs 0 <= begin < end <= 1, found begin {} and end {}",
                {options.begin, options.end});
  return std::make_shared<TokenDataset>(files, options);
}

}  // namespace trireme
