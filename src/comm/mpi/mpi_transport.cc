// Messages through MPI's point-to-point calls. A module of its own for each MPI
// (transport/transport_module.h), because their binary interfaces differ.

#include <cstdlib>
#include <thread>
#include <vector>

#include <mpi.h>

#include "comm/transport/transport.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// MPI counts in int.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

bool& failed() {
  static bool value = false;
  return value;
}

// mpirun takes a process that ends without this for a crash. After a failure it would wait for
// ranks that are gone.
void finalize_at_exit() {
  int done = 0;
  MPI_Finalized(&done);
  if (done == 0 && !failed()) {
    MPI_Finalize();
  }
}

struct Parcel {
  std::vector<MPI_Request> requests;
  int peer = -1;
  bool failed = false;  // never finished then
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm parent) {
    MPI_Comm_dup(parent, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    losses_.resize(static_cast<std::size_t>(size_));
  }
  ~MpiTransport() override {
    int done = 0;
    MPI_Finalized(&done);
    // Freeing is collective in some MPIs; a few bytes are kept instead of waiting for the others.
    static_cast<void>(done);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::string description() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string whole(text, static_cast<std::size_t>(length));
    return concat("MPI (", whole.substr(0, whole.find_first_of(",\n")), ")");
  }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length) override {
    return start(to, bytes, [&](std::size_t begin, int count, MPI_Request* request) {
      return MPI_Isend(data + begin, count, MPI_BYTE, to, static_cast<int>(tag), comm_, request);
    });
  }
  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length) override {
    return start(from, bytes, [&](std::size_t begin, int count, MPI_Request* request) {
      return MPI_Irecv(data + begin, count, MPI_BYTE, from, static_cast<int>(tag), comm_, request);
    });
  }

  bool finished(Request& request) override {
    if (!request.pending()) {
      return true;
    }
    if (abandoned_) {
      return false;
    }
    auto* parcel = static_cast<Parcel*>(request.handle());
    while (!parcel->requests.empty()) {
      int done = 0;
      const int code = MPI_Test(&parcel->requests.back(), &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) {
        parcel->failed = true;
        // A message that is too long is of a rank that made another call, as announcements will
        // show. The rank is well.
        int kind = MPI_SUCCESS;
        MPI_Error_class(code, &kind);
        if (kind != MPI_ERR_TRUNCATE) {
          note(parcel->peer, code);
        }
      }
      if (done == 0 || parcel->failed) {
        return false;
      }
      parcel->requests.pop_back();
    }
    delete parcel;
    request.clear();
    return true;
  }

  // MPI cannot be kept from moving data when it is called, so it is not called any more.
  void abandon() override {
    abandoned_ = true;
    failed() = true;
  }

  void drop(Request& request) override {
    if (!request.pending() || abandoned_) {
      request.clear();
      return;
    }
    int done = 0;
    MPI_Finalized(&done);
    auto* parcel = static_cast<Parcel*>(request.handle());
    for (MPI_Request& part : parcel->requests) {
      if (done == 0) {
        MPI_Cancel(&part);
        MPI_Request_free(&part);
      }
    }
    delete parcel;
    request.clear();
  }

  bool progress() override {
    if (abandoned_) {
      return false;
    }
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &flag, MPI_STATUS_IGNORE);
    return false;  // what has moved is seen in the messages
  }
  void rest(Milliseconds) override {
    // MPI has nothing to wait for.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  void wake() override {}

  std::optional<std::string> lost(int rank) override {
    return losses_[static_cast<std::size_t>(rank)];
  }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes&) override {
    return std::make_unique<MpiTransport>(comm_);
  }

 private:
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): finished() tests the requests
  template <class Start>
  Request start(int peer, std::size_t bytes, const Start& one) {
    auto parcel = std::make_unique<Parcel>();
    parcel->peer = peer;
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(kMostBytes, bytes - begin);
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = one(begin, static_cast<int>(count), &request);
      if (code != MPI_SUCCESS) {
        note(peer, code);
      }
      parcel->requests.push_back(request);
      begin += count;
    } while (begin < bytes);
    return Request(parcel.release());
  }
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

  void note(int rank, int code) {
    auto& loss = losses_[static_cast<std::size_t>(rank)];
    if (!loss) {
      loss = error_text(code);
      failed() = true;
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
  std::vector<std::optional<std::string>> losses_;
};

}  // namespace
}  // namespace trireme::detail

// NOLINTNEXTLINE(readability-identifier-naming): the loader looks for this name
extern "C" __attribute__((visibility("default"))) trireme::detail::Transport*
trireme_make_mpi_transport(std::string* failure) {
  if (trireme::detail::failed()) {
    *failure =
        "a world over MPI has failed in this process, and MPI may still write to the memory of its "
        "messages when it is called again; end the program and start it again";
    return nullptr;
  }
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) {
    int provided = 0;
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (code != MPI_SUCCESS) {
      *failure = trireme::detail::error_text(code);
      return nullptr;
    }
    std::atexit(trireme::detail::finalize_at_exit);
    if (provided < MPI_THREAD_MULTIPLE) {
      *failure = "it was built without support for threads (MPI_THREAD_MULTIPLE)";
      return nullptr;
    }
  }
  return new trireme::detail::MpiTransport(MPI_COMM_WORLD);
}
