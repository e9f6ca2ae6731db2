#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"

// How ranks tell each other what only some of them know. All of it is collective, and costs one
// all_gather of a number or two where nothing is wrong.

namespace trireme {

// Every rank's text, in rank order. A text of rank 0 is all_texts(ranks, leads ? text : "")[0].
std::vector<std::string> all_texts(Communicator& ranks, const std::string& mine);

// Does something that may fail on some ranks only, such as reading a file or taking memory, and
// throws on all of them if it does, so that none waits for one that has thrown: what the first of
// them threw, as the same kind of error (ConfigError, MemoryError, DataError, CheckpointError, else
// Error), with "rank 2: " before its text. Ranks that failed in that way themselves throw their
// own. What is done must not communicate, except where all ranks hear of its failures anyway.
void on_all_ranks(Communicator& ranks, const std::function<void()>& action);

// Throws ConfigError on every rank where the lines of some rank are not those of rank 0, with the
// first that differs: "`what` differs between ranks: rank 0 has ... where rank 2 has ...:
// `advice`".
void check_same_on_all_ranks(Communicator& ranks,
                             const std::string& what,
                             const std::vector<std::string>& lines,
                             const std::string& advice);

}  // namespace trireme
