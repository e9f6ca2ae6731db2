#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme {

// A file that TensorBoard opens: events.out.tfevents.<time>.<host>.<pid>.trireme in a folder, which
// is made where it is missing. Records are buffered; flush() hands them to the system. Throws Error
// with file and reason when a write fails (a full disk); what was written before stays readable,
// and what was not is tried again with the next flush. Not thread-safe.
class EventFile {
 public:
  explicit EventFile(const std::string& folder);
  // For a run that resumes with `first_step`: TensorBoard drops what was written before of this
  // step and of later ones. With kNewestFile the run goes on in the folder's newest file, whose
  // last record may be cut off (its process was lost), and to which nobody may still write; in a
  // new one where there is none, or where that is damaged.
  enum class Into { kNewFile, kNewestFile };
  EventFile(const std::string& folder, std::int64_t first_step, Into into = Into::kNewFile);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile();  // flushes; a failure is logged

  void add_scalar(const std::string& tag, std::int64_t step, double value);
  // Values are counted in TensorFlow's default buckets (limits +-1e-12 * 1.1^k) or fewer; those
  // that are not finite are left out.
  void add_histogram(const std::string& tag, std::int64_t step, std::span<const float> values);
  // Shown as Markdown.
  void add_text(const std::string& tag, std::int64_t step, const std::string& text);
  void flush();
  const std::string& path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// CRC-32C (Castagnoli) of some bytes, as TensorFlow's record format wants it (before its masking).
std::uint32_t crc32c(std::span<const std::uint8_t> bytes);

}  // namespace trireme
