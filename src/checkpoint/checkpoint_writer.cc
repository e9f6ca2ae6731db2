#include "trireme/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <pthread.h>
#include <signal.h>

#include "checkpoint/assembly.h"
#include "checkpoint/direct_file.h"
#include "checkpoint/durable.h"
#include "checkpoint/file_image.h"
#include "checkpoint/save_failure.h"
#include "checkpoint/save_request.h"
#include "checkpoint/shared_folder.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/writing_pace.h"
#include "trireme/comm/tell.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/core/printed.h"
#include "trireme/core/seconds_since.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::Assembly;
using detail::concat;
using detail::DirectFile;
using detail::FileImage;
using detail::seconds_since;
using detail::Snapshot;
using Time = std::chrono::steady_clock;

// A destructor's patience with ranks that have not said that they are done.
constexpr auto kPatience = std::chrono::seconds(30);
// Less than any sensible deadline of a collective, which others may be waiting in.
constexpr auto kWaitTurn = std::chrono::milliseconds(100);

std::string seconds_text(double seconds) {
  return detail::printed("%.2f s", seconds);
}

}  // namespace

class CheckpointWriter::Impl {
 public:
  Impl(const std::string& folder,
       std::shared_ptr<Communicator> ranks,
       const CheckpointOptions& options)
      : folder_(folder), ranks_(std::move(ranks)), options_(options) {
    TRIREME_CHECK(ranks_, "CheckpointWriter: the world is a null pointer");
    TRIREME_CHECK(options.retention.keep_last >= 0 && options.retention.keep_every >= 0,
                  "keep_last and keep_every cannot be negative");
    on_all_ranks(*ranks_, [&] {
      if (leads()) {
        lock_.emplace(folder);
        detail::sync_folders_above(folder);
        folder_.remove_unfinished();
        sequence_ = folder_.last_sequence();
      }
    });
    if (ranks_->size() > 1) {
      detail::check_shared_folder(*ranks_, folder);
    }
  }

  ~Impl() {
    if (std::uncaught_exceptions() > 0) {
      cancelled_ = true;  // the job ends: nobody can be waited for
    }
    deadline_ = Time::now() + kPatience;
    ending_ = true;
    pace_.hurry();
    if (thread_.joinable()) {
      thread_.join();
    }
    clear_away();
    if (failure_.is_there() && !failure_.was_told()) {
      log(LogLevel::kError, failure_.text());
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  SaveReport save(std::int64_t step, const StateView& state, const Notes& notes) {
    detail::agree_on_request(*ranks_, step, state, notes);
    SaveReport report;
    const std::int64_t before = step_;
    const bool unfinished = writing_;
    const auto begin = Time::now();
    std::optional<FileImage> image;
    wait_and_agree([&] {
      image.emplace(folder_.path(), state);
      snapshot_.begin(image->size_bytes(), options_.snapshot_bytes, Manifest().block_bytes);
      prepare(step);
    });
    if (unfinished) {
      report.disk_seconds = seconds_since(begin);
      say(concat("checkpoint of step {}: training waited {} until that of step {} was on disk",
                 {step, seconds_text(report.disk_seconds), before}));
    }
    std::vector<std::int64_t> number = {sequence_};
    ranks_->broadcast(number, 0).wait();
    sequence_ = number[0];
    step_ = step;

    const std::string folder = Assembly::folder_of(folder_, step, sequence_);
    report.rank_bytes = image->size_bytes();
    copy(*image, state, notes, folder, report);
    if (options_.wait) {
      finish();
    }
    return report;
  }

  const detail::SaveFailure& failure() const { return failure_; }

  void finish() {
    wait_and_agree([] {});
  }

  const CheckpointFolder& folder() const { return folder_; }

 private:
  bool leads() const { return ranks_->rank() == 0; }
  bool given_up() const { return cancelled_ || another_failed_; }

  void say(const std::string& text) const {
    if (!leads()) {
      return;
    }
    if (options_.say) {
      options_.say(text);
    } else {
      log(LogLevel::kWarning, text);
    }
  }

  // Waits for all ranks' threads; all ranks then know whether one has failed.
  template <class Function>
  void wait_and_agree(const Function& then) {
    wait_for_threads();
    try {
      on_all_ranks(*ranks_, [&] {
        failure_.check();
        then();
      });
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      failure_.keep(error);
      clear_away();  // no rank writes there any more
      failure_.check();
    }
  }

  // A slow disk may take longer than a communicator's patience: its ranks hear of each other
  // meanwhile. Also of failures that a full disk did not let them tell through the folder.
  void wait_for_threads() {
    pace_.hurry();
    try {
      for (std::vector<std::int64_t> busy_failed = {1, 0}; busy_failed[0] != 0;) {
        std::unique_lock lock(mutex_);
        ended_.wait_for(lock, kWaitTurn, [this] { return !writing_; });
        busy_failed = {writing_ ? 1 : 0, failure_.is_there() ? 1 : 0};
        lock.unlock();
        ranks_->all_reduce(busy_failed, ReduceOp::kMax).wait();
        if (busy_failed[1] != 0) {
          another_failed_ = true;
        }
      }
    } catch (const CommError&) {
      cancelled_ = true;  // nobody can be waited for any more
      throw;
    }
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  // Rank 0: what was not finished goes. Nothing is being written by this rank.
  void clear_away() const {
    if (leads() && !unfinished_.empty() && (failure_.is_there() || cancelled_)) {
      std::error_code error;
      fs::remove_all(unfinished_, error);
    }
  }

  // Rank 0's: a folder for what is written now.
  void prepare(std::int64_t step) {
    if (leads()) {
      ++sequence_;
      const std::string path = Assembly::folder_of(folder_, step, sequence_);
      unfinished_ = path;
      std::error_code error;
      fs::remove_all(path, error);
      fs::create_directory(path, error);
      if (error) {
        throw CheckpointError(
            path, -1, concat("the folder \"", path, "\" could not be created: ", error.message()));
      }
    }
  }

  // Copies what is to be written, while the thread begins to write it.
  void copy(FileImage& image,
            const StateView& state,
            const Notes& notes,
            const std::string& folder,
            SaveReport& report) {
    Assembly assembly(folder_, folder, *ranks_, state.tensors);
    assembly.set_parts(image.parts());
    Manifest about;
    about.step = step_;
    about.sequence = sequence_;
    about.saved_at = std::time(nullptr);
    about.ranks = ranks_->size();
    about.notes = notes;
    const auto begin = Time::now();
    writing_ = true;
    pace_.begin(options_.wait || snapshot_.memory_bytes() < image.size_bytes());
    try {
      thread_ =
          std::thread([this, assembly, about]() mutable { write(assembly, std::move(about)); });
    } catch (const std::system_error& error) {  // too many of them
      writing_ = false;
      fail(assembly,
           CheckpointError(assembly.own_path(),
                           -1,
                           concat("the thread that writes checkpoints could not be started: ",
                                  error.what(),
                                  ": allow more processes (ulimit -u)")));
      return;
    }
    double waited = 0;
    try {
      for (std::uint64_t done = 0; done < image.size_bytes();) {
        std::byte* piece = snapshot_.take_empty(waited);
        const std::size_t bytes = image.copy_next(piece, snapshot_.piece_bytes());
        snapshot_.put_full({piece, bytes});
        done += bytes;
      }
    } catch (const Error& error) {  // of a disk that the state is on
      fail(assembly, error);
      another_failed_ = true;  // the thread does not deliver what has come so far
    }
    snapshot_.end();
    report.copy_seconds = seconds_since(begin) - waited;
    report.disk_seconds += waited;
    if (waited > 0) {
      say(
          concat("checkpoint of step {}: training waited {} for the disk, because the snapshot is "
                 "limited to {} bytes but {} have to be saved",
                 {step_, seconds_text(waited), options_.snapshot_bytes, image.size_bytes()}));
    }
  }

  // --- on the thread

  void drill(DrillPoint point, std::int64_t step) const {
    detail::drill_at(point, step, ranks_->rank(), ranks_->size());
  }

  void write(Assembly& assembly, Manifest about) {
    // A file that may not grow (ulimit -f) is an error to report, not the end of the process.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    try {
      detail::drill_save(about.step, ranks_->rank(), ranks_->size());
      drill(DrillPoint::kSaveBegins, about.step);
      DirectFile file(assembly.own_path(), about.block_bytes);
      while (const auto piece = snapshot_.take_full()) {
        const auto begin = Time::now();
        if (!given_up()) {
          file.append(piece->data, piece->bytes);
        }
        snapshot_.put_empty(piece->data);
        pace_.rest(Time::now() - begin);
      }
      if (!given_up()) {
        file.finish();
        drill(DrillPoint::kSaveWritten, about.step);
        assembly.deliver(
            {fs::path(file.path()).filename().string(), file.size_bytes(), file.checksums()});
      }
      drill(DrillPoint::kSaveDelivered, about.step);
      if (leads() && !given_up()) {
        assemble(assembly, std::move(about));
      }
    } catch (const Error& error) {
      fail(assembly, error);
    } catch (const std::exception& error) {
      fail(assembly, CheckpointError(assembly.own_path(), -1, error.what()));
    }
    // After a failure: whoever fills must not wait.
    while (const auto piece = snapshot_.take_full()) {
      snapshot_.put_empty(piece->data);
    }
    const std::lock_guard lock(mutex_);
    writing_ = false;
    ended_.notify_all();
  }

  void fail(const Assembly& assembly, const Error& error) {
    if (cancelled_) {
      return;  // the job ends for another reason
    }
    if (!leads() && assembly.is_gone()) {
      failure_.keep(CheckpointError(
          assembly.own_path(), -1, concat("rank 0 gave up the checkpoint of step ", step_)));
      return;
    }
    failure_.keep(error);
    assembly.report_failure(error.what());
  }

  // Rank 0: when all files are on disk, the checkpoint appears.
  void assemble(Assembly& assembly, Manifest about) {
    const bool complete = assembly.wait_for_all(
        [this] { return given_up() || (ending_ && Time::now() > deadline_); });
    if (!complete) {
      if (!given_up()) {
        throw CheckpointError(assembly.own_path(),
                              -1,
                              concat("the checkpoint of step ",
                                     about.step,
                                     " was given up: other ranks did not finish their parts"));
      }
      return;
    }
    assembly.write_manifest(about);
    if (options_.before_publish) {
      options_.before_publish();
    }
    assembly.publish(about.step);
    folder_.prune(options_.retention, about.step);
  }

  CheckpointFolder folder_;
  std::shared_ptr<Communicator> ranks_;
  CheckpointOptions options_;
  std::optional<FolderLock> lock_;  // rank 0's
  std::int64_t sequence_ = 0;
  std::int64_t step_ = 0;
  std::string unfinished_;  // rank 0's: the folder of the last save, until it has its name

  Snapshot snapshot_;
  std::thread thread_;
  std::atomic<bool> writing_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> another_failed_{false};
  std::atomic<bool> ending_{false};
  Time::time_point deadline_;  // written before ending_

  std::mutex mutex_;  // of the end of writing
  std::condition_variable ended_;
  detail::WritingPace pace_;
  detail::SaveFailure failure_;
};

CheckpointWriter::CheckpointWriter(const std::string& folder,
                                   std::shared_ptr<Communicator> ranks,
                                   const CheckpointOptions& options)
    : impl_(std::make_unique<Impl>(folder, std::move(ranks), options)) {}
CheckpointWriter::~CheckpointWriter() = default;
SaveReport CheckpointWriter::save(std::int64_t step, const StateView& state, const Notes& notes) {
  return impl_->save(step, state, notes);
}
void CheckpointWriter::check() const {
  impl_->failure().check();
}
std::string CheckpointWriter::failure() const {
  return impl_->failure().text();
}
void CheckpointWriter::finish() {
  impl_->finish();
}
const CheckpointFolder& CheckpointWriter::folder() const {
  return impl_->folder();
}

}  // namespace trireme
