#include "trireme/comm/elastic.h"

#include <locale>
#include <sstream>
#include <utility>

#include "comm/rendezvous/membership_socket.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme {

std::string EpochPlace::to_text() const {
  return detail::concat("{} {} {} {} {} {}",
                        {epoch, rank, size, local_rank, local_size, rendezvous});
}

std::optional<EpochPlace> EpochPlace::parse(const std::string& text) {
  std::istringstream fields(text);
  fields.imbue(std::locale::classic());
  EpochPlace place;
  if (!(fields >> place.epoch >> place.rank >> place.size >> place.local_rank >>
        place.local_size) ||
      place.epoch < 0 || place.epoch > kMostEpoch || place.rank < 0 || place.rank >= place.size ||
      place.local_rank < 0 || place.local_rank >= place.local_size ||
      place.local_size > place.size) {
    return std::nullopt;
  }
  fields >> place.rendezvous;
  fields.clear();
  return (fields >> std::ws).eof() ? std::optional(place) : std::nullopt;
}

namespace {

// What another world could do better: not what this one was asked for.
bool is_loss(const CommError& error) {
  return error.reason() != CommError::Reason::kMismatch &&
         error.reason() != CommError::Reason::kStopped &&
         error.reason() != CommError::Reason::kRefused;
}

// Asks what this rank does after `epoch`, and waits for the answer; empty: the job ends.
detail::Packet what_next(int socket, std::int64_t epoch) {
  try {
    detail::send_with_descriptors(socket, detail::concat(kNextWord, " ", epoch), {});
  } catch (const Error&) {
    return {};
  }
  auto answer = detail::receive_answer(socket);
  detail::forget_words_of_launcher();
  return answer ? std::move(*answer) : detail::Packet();
}

}  // namespace

int run_elastic(const std::function<int(const std::shared_ptr<World>& world)>& training,
                const InitOptions& options) {
  const int socket = detail::membership_socket();
  InitOptions here = options;
  if (socket >= 0 && !here.epoch) {
    here.epoch = env_integer(kEnvEpoch, 0, kMostEpoch).value_or(0);
  }
  FileDescriptor listener;  // of rank 0, in the epoch at hand
  for (;;) {
    std::optional<EpochPlace> next;
    try {
      return training(init(here));
    } catch (const CommError& error) {
      detail::Packet answer =
          socket >= 0 && is_loss(error) ? what_next(socket, *here.epoch) : detail::Packet();
      if (answer.text == kLeaveWord) {
        return 0;
      }
      next = EpochPlace::parse(answer.text);
      if (!next) {
        throw;
      }
      listener =
          answer.descriptors.empty() ? FileDescriptor() : std::move(answer.descriptors.front());
      log(LogLevel::kInfo, error.what());
    }
    here.epoch = next->epoch;
    here.rank = next->rank;
    here.size = next->size;
    here.local_rank = next->local_rank;
    here.local_size = next->local_size;
    here.rendezvous = next->rendezvous;
    here.listener = listener.get();
  }
}

}  // namespace trireme
