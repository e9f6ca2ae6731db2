#include <cstdio>

#include "checkpoint_place.h"
#include "ckpt.h"
#include "trireme/checkpoint/compare.h"
#include "trireme/core/error.h"
#include "trireme/core/printed.h"
#include "trireme/launch/launcher.h"

namespace trireme::tools {
namespace {

using detail::concat;

struct Side {
  std::string path;
  bool file = false;
  Notes notes;
};

Side side_at(const std::string& place, const Step& step) {
  Side side;
  side.file = is_weights_file(place);
  side.path = side.file ? place : checkpoint_at(place, step);
  if (!side.file) {
    side.notes = Manifest::read(side.path).notes;
  }
  return side;
}

std::string text_of(const TensorDifference& each) {
  std::string text = each.title;
  if (!each.form.empty()) {
    text += ": " + each.form;
  }
  if (each.differing > 0) {
    const std::string largest = detail::printed("%.6g", each.largest);
    text +=
        concat(": ", each.differing, " of ", each.numel, " elements differ, by at most ", largest);
  }
  return text;
}

// Names of the notes that are not the same.
std::vector<std::string> other_notes(const Notes& a, const Notes& b) {
  std::vector<std::string> found;
  Notes all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [name, text] : all) {
    const auto in_a = a.find(name);
    const auto in_b = b.find(name);
    if (in_a == a.end() || in_b == b.end()) {
      found.push_back(concat(name, ": only in ", in_a == a.end() ? "B" : "A"));
    } else if (in_a->second != in_b->second) {
      found.push_back(name);
    }
  }
  return found;
}

}  // namespace

int diff_checkpoints(const DiffOptions& options) try {
  const Side a = side_at(options.a, options.step);
  const Side b = side_at(options.b, options.step);
  TRIREME_CHECK(!options.step || !a.file || !b.file,
                "--step: it selects a checkpoint in a run or folder, found two files of weights: "
                "leave it out");
  std::printf("A: %s\nB: %s\n", a.path.c_str(), b.path.c_str());
  std::fflush(stdout);  // before what may be wrong with them
  // A file of weights can only be compared with what it can hold.
  const bool weights_only = a.file || b.file;
  const auto open = [&](const Side& side) {
    return side.file      ? weights_of_safetensors(side.path)
           : weights_only ? weights_of_checkpoint(side.path)
                          : state_of_checkpoint(side.path);
  };
  const TensorComparison comparison = compare_tensors(*open(a), *open(b), !weights_only);
  for (const std::string& title : comparison.only_a) {
    std::printf("only in A: %s\n", title.c_str());
  }
  for (const std::string& title : comparison.only_b) {
    std::printf("only in B: %s\n", title.c_str());
  }
  for (const TensorDifference& each : comparison.different) {
    std::printf("%s\n", text_of(each).c_str());
  }
  const auto notes =
      weights_only || !options.notes ? std::vector<std::string>{} : other_notes(a.notes, b.notes);
  for (const std::string& each : notes) {
    std::printf("note %s differs\n", each.c_str());
  }
  std::printf("%zu %s equal, bit by bit%s\n",
              comparison.equal,
              comparison.equal == 1 ? "tensor is" : "tensors are",
              a.file != b.file ? "; of the checkpoint, weights and buffers were compared" : "");
  return comparison.same() && notes.empty() ? kExitOk : 1;
} catch (const DataError& error) {
  // 1 says that they differ, and whether they do is not known.
  std::fprintf(stderr, "trireme: %s\n", error.what());
  return kExitUsage;
}

}  // namespace trireme::tools
