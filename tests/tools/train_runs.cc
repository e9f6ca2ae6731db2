#include "tools/train_runs.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

namespace trireme::testing {

Words words(const std::string& text) {
  std::istringstream in(text);
  const Words all{std::istream_iterator<std::string>(in), {}};
  const auto is_flag = [](const std::string& word) {
    return word.size() > 1 && word[0] == '-' && std::isdigit(word[1]) == 0 && word != "--";
  };
  Words once;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_flag(all[i]) &&
        std::find(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end(), all[i]) !=
            all.end()) {
      i += i + 1 < all.size() && !is_flag(all[i + 1]) ? 1 : 0;
      continue;
    }
    once.push_back(all[i]);
  }
  return once;
}

void expect_parts(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

Json parse_json(const std::string& text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json read_json(const std::string& path) {
  return parse_json(read_file(path));
}

std::vector<Json> read_json_lines(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) {
    lines.push_back(parse_json(line));
    EXPECT_FALSE(lines.back().is_discarded()) << path << ": " << line;
  }
  return lines;
}

// What training has computed, to the last digit, and nothing of how long it took.
Words history(const std::string& run) {
  Words all;
  for (Json line : read_json_lines(run + "/metrics.jsonl")) {
    for (const char* name : {"seconds",
                             "samples_per_second",
                             "tokens_per_second",
                             "comm_seconds",
                             "data_seconds",
                             "rank_bytes",
                             "sent_bytes",
                             "compress_error",
                             "compress_cosine",
                             "compress_descent"}) {
      line.erase(name);
    }
    all.push_back(line.dump());
  }
  return all;
}

// The rows of a CSV file of numbers, below its header.
std::vector<std::vector<double>> read_rows(const std::string& path) {
  std::vector<std::vector<double>> rows;
  std::istringstream in(read_file(path));
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) {
      rows.back().push_back(std::stod(cell));
    }
  }
  return rows;
}

}  // namespace trireme::testing
