#include "support/power_cut.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <sys/stat.h>

#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
using Kind = FileOp::Kind;
using Tree = std::map<std::string, std::string>;

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kFew = 7;       // of which all choices are tried
constexpr int kChoicesByChance = 40;  // of more

// Whether fsync of `file` puts this on disk: of a file what was written, of a folder the names.
bool concerns(const FileOp& op, int file) {
  return op.kind == Kind::kWrite || op.kind == Kind::kTruncate
             ? op.file == file
             : op.folder == file || (op.kind == Kind::kRename && op.new_folder == file);
}

// A write as one for each page.
std::vector<FileOp> pages_of(const FileOp& op) {
  if (op.kind != Kind::kWrite) {
    return {op};
  }
  std::vector<FileOp> pages;
  for (std::uint64_t done = 0; done < op.bytes;) {
    FileOp page = op;
    page.offset = op.offset + done;
    page.bytes = std::min(kPage - page.offset % kPage, op.bytes - done);
    page.data = op.data.substr(done, page.bytes);
    done += page.bytes;
    pages.push_back(std::move(page));
  }
  return pages;
}

using Choice = std::vector<bool>;  // which of what is not on disk survives

std::vector<Choice> choices_of(std::size_t count, std::mt19937& random) {
  std::vector<Choice> all;
  if (count <= kFew) {
    for (std::size_t bits = 0; bits < std::size_t{1} << count; ++bits) {
      Choice choice;
      for (std::size_t i = 0; i < count; ++i) {
        choice.push_back((bits >> i & 1) != 0);
      }
      all.push_back(std::move(choice));
    }
    return all;
  }
  for (std::size_t i = 0; i <= count; ++i) {
    Choice first(count, false);
    std::fill_n(first.begin(), i, true);
    all.push_back(std::move(first));
    if (i < count) {
      Choice alone(count, false);
      alone[i] = true;
      all.push_back(std::move(alone));
      Choice others(count, true);
      others[i] = false;
      all.push_back(std::move(others));
    }
  }
  for (int i = 0; i < kChoicesByChance; ++i) {
    Choice some;
    for (std::size_t k = 0; k < count; ++k) {
      some.push_back(random() % 2 == 0);
    }
    all.push_back(std::move(some));
  }
  return all;
}

// Numbers of inodes are given again; those here are not.
class Numbers {
 public:
  int make(std::uint64_t inode) { return known_[inode] = next_++; }
  int of(std::uint64_t inode) const {
    const auto found = known_.find(inode);
    TRIREME_CHECK(found != known_.end(), "the log does not say where file ", inode, " comes from");
    return found->second;
  }

 private:
  std::map<std::uint64_t, int> known_;
  int next_ = 0;
};

}  // namespace

std::vector<FileOp> read_file_log(const std::string& log, const std::string& root) {
  std::ifstream file(log, std::ios::binary);
  Numbers numbers;
  struct stat status {};
  TRIREME_CHECK(stat(root.c_str(), &status) == 0, "no folder ", root);
  numbers.make(status.st_ino);
  std::map<int, std::string> names;
  std::vector<FileOp> ops;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    std::uint64_t inode = 0;
    std::uint64_t folder = 0;
    FileOp op;
    words >> what;
    if (what == "create") {
      std::string type;
      words >> folder >> op.name >> inode >> type;
      op.folder = numbers.of(folder);
      op.file = numbers.make(inode);
      op.is_folder = type == "d";
      names[op.file] = op.name;
    } else if (what == "link") {
      op.kind = Kind::kLink;
      words >> folder >> op.name >> inode;
      op.folder = numbers.of(folder);
      op.file = numbers.of(inode);
    } else if (what == "remove") {
      op.kind = Kind::kRemove;
      words >> folder >> op.name;
      op.folder = numbers.of(folder);
    } else if (what == "rename") {
      op.kind = Kind::kRename;
      std::uint64_t new_folder = 0;
      std::uint64_t other = 0;
      words >> folder >> op.name >> inode >> new_folder >> op.new_name >> other;
      op.folder = numbers.of(folder);
      op.new_folder = numbers.of(new_folder);
      op.file = numbers.of(inode);
      op.other = other == 0 ? -1 : numbers.of(other);
      names[op.file] = op.new_name;
    } else if (what == "write") {
      op.kind = Kind::kWrite;
      words >> inode >> op.offset >> op.bytes;
      op.file = numbers.of(inode);
      op.data.resize(op.bytes);
      file.read(op.data.data(), static_cast<std::streamsize>(op.bytes));
    } else if (what == "truncate") {
      op.kind = Kind::kTruncate;
      words >> inode >> op.bytes;
      op.file = numbers.of(inode);
    } else {
      TRIREME_CHECK(what == "sync", "no record: ", line);
      op.kind = Kind::kSync;
      words >> inode;
      op.file = numbers.of(inode);
      op.name = names[op.file];
    }
    TRIREME_CHECK(words && file, "a broken record: ", line);
    ops.push_back(std::move(op));
  }
  return ops;
}

Disk::Disk(const std::vector<FileOp>& ops) {
  files_[0].is_folder = true;
  for (const FileOp& op : ops) {
    if (op.kind == Kind::kCreate) {
      files_[op.file].is_folder = op.is_folder;
    }
  }
}

void Disk::apply(const FileOp& op) {
  switch (op.kind) {
    case Kind::kCreate:
    case Kind::kLink:
      files_[op.folder].entries[op.name] = op.file;
      break;
    case Kind::kRemove:
      files_[op.folder].entries.erase(op.name);
      break;
    case Kind::kRename:
      files_[op.folder].entries.erase(op.name);
      files_[op.new_folder].entries[op.new_name] = op.file;
      if (op.other >= 0) {
        files_[op.folder].entries[op.name] = op.other;
      }
      break;
    case Kind::kWrite: {
      std::string& bytes = files_[op.file].bytes;
      bytes.resize(std::max<std::size_t>(bytes.size(), op.offset + op.bytes), '\0');
      bytes.replace(op.offset, op.bytes, op.data);
      break;
    }
    case Kind::kTruncate:
      files_[op.file].bytes.resize(op.bytes, '\0');
      break;
    case Kind::kSync:
      break;
  }
}

void Disk::collect(int folder, const std::string& path, Tree& found) const {
  for (const auto& [name, number] : files_.at(folder).entries) {
    const File& file = files_.at(number);
    if (file.is_folder) {
      found[path + name + "/"];
      collect(number, path + name + "/", found);
    } else {
      found[path + name] = file.bytes;
    }
  }
}

Tree Disk::tree() const {
  Tree found;
  collect(0, "", found);
  return found;
}

void Disk::write(const Tree& tree, const std::string& folder) {
  fs::create_directory(folder);
  for (const auto& [path, bytes] : tree) {  // a folder sorts before what is in it
    if (path.ends_with("/")) {
      fs::create_directory(folder + "/" + path);
    } else {
      std::ofstream(folder + "/" + path, std::ios::binary) << bytes;
    }
  }
}

Tree Disk::read(const std::string& folder) {
  Tree found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = fs::relative(entry.path(), folder).string();
    if (entry.is_directory()) {
      found[path + "/"];
    } else {
      found[path] = read_file(entry.path().string());
    }
  }
  return found;
}

void each_power_cut(const std::vector<FileOp>& ops,
                    const std::function<bool(std::size_t done, const Tree& tree)>& look) {
  std::mt19937 random(20261116);
  Disk safe(ops);
  std::vector<FileOp> waiting;
  for (std::size_t done = 0; done <= ops.size(); ++done) {
    for (const Choice& choice : choices_of(waiting.size(), random)) {
      Disk disk = safe;
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (choice[i]) {
          disk.apply(waiting[i]);
        }
      }
      if (!look(done, disk.tree())) {
        return;
      }
    }
    if (done == ops.size()) {
      return;
    }
    const FileOp& op = ops[done];
    if (op.kind == Kind::kSync) {
      const auto kept =
          std::stable_partition(waiting.begin(), waiting.end(), [&](const FileOp& each) {
            return concerns(each, op.file);
          });
      std::for_each(waiting.begin(), kept, [&](const FileOp& each) { safe.apply(each); });
      waiting.erase(waiting.begin(), kept);
    } else {
      for (FileOp& page : pages_of(op)) {
        waiting.push_back(std::move(page));
      }
    }
  }
}

}  // namespace trireme::testing
