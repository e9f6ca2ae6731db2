#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launch/fleet_meeting.h"
#include "launch/job_setup.h"
#include "launch/leadership.h"
#include "launch/signal_watch.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// How the launchers of a job come together, where there are several, and what its ranks share.
class JobMeeting {
 public:
  // Asks the name server, which may block. `options` outlives it.
  explicit JobMeeting(const LaunchOptions& options);

  // Meets the others, again where this machine has lost them; nothing where there are none. Throws
  // as meet_launchers.
  std::optional<Roster> meet(const SignalWatch& signals,
                             const std::function<void(const std::string&)>& say);

  const JobIdentity& identity() const { return identity_; }
  // Where rank 0 listens if it is here; not valid where nobody needs one, or it was taken before.
  FileDescriptor take_listener() { return std::move(listener_); }
  // In which world this machine was last, for whoever decides then.
  void tell_world(const std::string& world) {
    if (meeting_) {
      meeting_->world = world;
    }
  }
  // Null where there is no store.
  Leadership* leadership() { return leadership_.get(); }
  // The deadline of every wait inside the job.
  Milliseconds timeout() const { return meeting_ ? meeting_->timeout : Milliseconds(0); }

 private:
  Roster meet_by_store(const std::function<void(const std::string&)>& say);
  // Where this machine listens, if it leads; opened once.
  void open_door();
  Leadership::View wait_for_leader(const Deadline& deadline,
                                   const std::function<void(const std::string&)>& say) const;
  void stay_alone();
  void find_master_port();

  const LaunchOptions& options_;
  std::optional<MeetingOptions> meeting_;  // empty where there is only this machine
  std::unique_ptr<Leadership> leadership_;
  MeetingStore store_;
  FileDescriptor door_;
  MeetingPlace own_place_;  // of the door
  JobIdentity identity_;
  FileDescriptor listener_;
};

}  // namespace trireme::detail
