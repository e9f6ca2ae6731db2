#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/neighbours.h"
#include "trireme/comm/operation.h"
#include "trireme/comm/shared_buffer.h"
#include "trireme/comm/window.h"
#include "trireme/comm/work.h"
#include "trireme/core/error.h"
#include "trireme/core/span.h"

namespace trireme {
namespace detail {
class OperationQueue;
class GroupMaker;
struct MemoryRequest;
struct Operation;
enum class OpKind : std::uint8_t;
}  // namespace detail

// Elements for each rank, in rank order; empty means the even split (trireme/shard/range.h).
using Counts = std::vector<std::int64_t>;

// What a communicator has cost this rank so far.
struct CommUse {
  std::int64_t operations = 0;  // issued
  std::int64_t bytes = 0;       // of their data, as the caller sees it (the larger of in and out)
  // Spent inside calls: moving and summing data, and waiting for peers.
  double seconds = 0;
  // Of messages that this rank has sent to other machines, announcements included.
  std::int64_t network_bytes = 0;
};

// A fixed group of ranks that can exchange data.
//
// A call issues its operation, never blocks for a peer (unless 32 are already in flight), and the
// operation is finished when its Work says so; until then it owns its spans. All ranks make the
// same calls in the same order; if they do not, every rank gets a CommError that names both calls.
// Spans are contiguous host memory: std::vector, SharedBuffer::span, or a CPU tensor
// (tensor/span.h), of any length; or memory of a GPU (docs/gpu.md). Input and output of a call must
// not overlap unless it says so.
//
// Wrong arguments throw ConfigError before anything is issued. After a CommError the communicator
// is finished. One thread at a time may issue operations; any thread may wait.
class Communicator {
 public:
  // What a communicator is made of.
  struct Parts {
    std::shared_ptr<detail::OperationQueue> queue;
    std::shared_ptr<Communicator> machine;  // null: itself
    std::shared_ptr<detail::GroupMaker> groups;
  };
  explicit Communicator(Parts parts);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Operations that are still in flight are dropped, and the other ranks are told that this one has
  // left.
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Ranks that give the same `color` become a group, ordered by `key`, then by their ranks here: a
  // communicator of their own, with an order of operations of its own, that can be split again.
  // Those that give kNoGroup get none (null). Collective and blocking, of all ranks here; one
  // thread at a time splits communicators of a world. Sums of the group add up groups of
  // `sum_group` ranks first (SumTerms::group); 0: as many as here.
  //
  // While a rank waits in one communicator of a world, its operations in the others go on. A group
  // may outlive what it was made from, but ends with it when that fails, and so does everything
  // when a rank of the world is lost. Over a network, a group that fails ends its world.
  static constexpr int kNoGroup = -1;
  std::shared_ptr<Communicator> split(int color, int key = 0, int sum_group = 0);

  // data = reduction over the ranks of data, the same bits everywhere.
  Work all_reduce(const Span& data, ReduceOp op = ReduceOp::kSum, SumTerms terms = {});

  // output = this rank's part (`counts`) of the reduction of input. The output may be this rank's
  // own part of the input. A 16-bit input may have a float32 output, which is then not rounded.
  Work reduce_scatter(const ConstSpan& input,
                      const Span& output,
                      ReduceOp op = ReduceOp::kSum,
                      Counts counts = {},
                      SumTerms terms = {});

  // output = the ranks' inputs one after another. The input may be this rank's own part of the
  // output.
  Work all_gather(const ConstSpan& input, const Span& output, Counts counts = {});

  // data = data of rank `root`.
  Work broadcast(const Span& data, int root = 0);

  // On `root`: data = reduction over the ranks of data. Unchanged elsewhere.
  Work reduce(const Span& data, int root = 0, ReduceOp op = ReduceOp::kSum);

  // On `root`: output = the ranks' inputs one after another. `output` is ignored elsewhere.
  Work gather(const ConstSpan& input, const Span& output, int root = 0, Counts counts = {});

  // output = this rank's part of the input of `root`. `input` is ignored elsewhere.
  Work scatter(const ConstSpan& input, const Span& output, int root = 0, Counts counts = {});

  // Rank r receives, in rank order, what each rank holds for r in its input, which is split by
  // `send_counts` (default: evenly). The output must be as long as what arrives.
  Work all_to_all(const ConstSpan& input, const Span& output, Counts send_counts = {});

  // output = the inputs of the ranks in `neighbours.from`, in that order, one after another; those
  // in `neighbours.to` get this rank's. Ranks may contribute different numbers of elements, and
  // have different neighbours, or none; a rank that names another which does not name it is an
  // error on all of them. All ranks make the call, so that nobody waits for a message that does not
  // come, but data moves between neighbours alone.
  Work neighbour_all_gather(const ConstSpan& input,
                            const Span& output,
                            const Neighbours& neighbours);

  // One message from rank to rank. Messages of a pair arrive in the order they were sent; dtype,
  // length and tag must be those of the receive that takes it.
  Work send(const ConstSpan& data, int to, int tag = 0);
  Work recv(const Span& data, int from, int tag = 0);

  // Finished when every rank has called it.
  Work barrier();

  // Waits until one of these operations of this communicator is finished, and says which; nothing
  // where `most` has passed. For a thread that serves: there is no other deadline, and that it
  // waits is no sign that its rank does. Throws CommError where a rank that one of them waits for
  // is lost.
  std::optional<std::size_t> wait_any(const std::vector<Work>& works, Milliseconds most);
  // The deadline of a wait that is given none.
  Milliseconds timeout() const;

  // Memory that collectives use in place: `bytes` for every rank. Collective and blocking; all
  // ranks ask for the same size. Throws MemoryError on every rank if one cannot have it, and
  // leaves the communicator usable. Only the parts of ranks on this machine can be read. On a GPU
  // that the process sees as `device`: of ranks of one machine, and only by collectives and work on
  // that GPU; throws ConfigError where there is none.
  SharedBuffer allocate(std::size_t bytes, Device device = {});

  // The same as one run of bytes, SharedBuffer::whole(), of which rank r writes `bytes[r]`, behind
  // those of the ranks before it, and everyone reads all. Of ranks of one machine; all ask for the
  // same. On a GPU the pages in which a rank has nothing cannot be written there.
  SharedBuffer allocate_run(const Counts& bytes, Device device = {});

  // The ranks that share this rank's machine and its memory, as a communicator of their own: itself
  // if all do.
  Communicator& machine() { return parts_.machine ? *parts_.machine : *this; }
  // All ranks are on one machine: each can read the SharedBuffers of every other.
  bool one_machine() const;
  // Ranks whose terms a sum adds up first (InitOptions::sum_group).
  int sum_group() const;
  // Memory of this rank that the others may read at any time. Collective, of a whole world over
  // several machines.
  std::unique_ptr<Window> expose(const std::byte* data, std::size_t bytes);

  CommUse use() const;

  // Ends the communicator on every rank: all waits throw CommError with this reason.
  void abort(const std::string& reason);
  // As `abort`, for a reason that has nothing to do with communication, such as a file that cannot
  // be used: what the ranks were doing explains nothing, so nobody writes a flight record.
  void stop(const std::string& reason);
  // As `abort`, because of a rank that was lost in another way than by an operation: `failure` has
  // its number here. Returns what every wait throws from now on.
  CommError fail(const CommError& failure);

 private:
  using OpKind = detail::OpKind;

  Work issue(detail::Operation operation);
  SharedBuffer take_memory(const detail::MemoryRequest& request);
  void check_rank(OpKind kind, const char* what, int rank) const;
  void check_neighbours(const char* what, const std::vector<int>& ranks) const;
  Counts checked_counts(OpKind kind, Counts counts, std::int64_t total) const;
  // The total of a gather or scatter, where this rank can know it, else -1; completes `counts`.
  std::int64_t agree_on_split(OpKind kind,
                              bool at_root,
                              std::int64_t numel_at_root,
                              Counts* counts) const;

  Parts parts_;
  const int rank_;
  const int size_;
  int splits_ = 0;
};

}  // namespace trireme
