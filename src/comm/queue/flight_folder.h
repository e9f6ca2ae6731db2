#pragma once

#include <string>
#include <vector>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// Where the records of a failure go. The folder is made, and looked at, when something is written
// and not before: what was true when the job began may have been changed since by whoever can write
// beside it. A file is never written through a name that somebody else may have put there.
class FlightFolder {
 public:
  FlightFolder() = default;
  // A folder that the user has named: it may be shared, and a link may lead to it.
  static FlightFolder named(const std::string& path);
  // A folder of this user and job under the system's temporary folder, or under the current one
  // where there is none. Everyone can make names there: it must be ours, no link, and closed to
  // others.
  static FlightFolder temporary(const std::string& job_digest);

  const std::string& path() const { return path_; }
  // A job begins: what earlier ones have left beside a temporary folder is taken away, if it is old
  // (old_flights.h).
  void remove_old() const;

  // Makes FOLDER/NAME hold `text`, also where there was something of that name, and returns its
  // path. Throws Error that says why it is refused and what to do.
  std::string write(const std::string& name, const std::string& text) const;
  // flight-summary.txt, or of a group flight-summary-group-G.txt; a refusal becomes a warning in
  // the log.
  void write_summary(const std::string& group, const std::string& text) const;

 private:
  FileDescriptor open_folder() const;

  std::string path_ = ".";
  std::string base_;                  // the temporary folder; empty: the user has named `path_`
  std::vector<std::string> private_;  // the folders below it, one in another
};

}  // namespace trireme::detail
