#include "launch/elastic_words.h"

#include <numeric>

#include "comm/rendezvous/packing.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr int kMostRanksOfMachine = 1 << 20;

}  // namespace

int EpochOrder::world_size() const {
  return std::accumulate(ranks.begin(), ranks.end(), 0);
}

int EpochOrder::first_rank(int machine) const {
  return std::accumulate(ranks.begin(), ranks.begin() + machine, 0);
}

std::string pack_status(const MachineStatus& status) {
  return Packer()
      .number(status.epoch)
      .number(status.members)
      .number(status.asks ? 1 : 0)
      .number(status.ready ? 1 : 0)
      .number(status.finished ? 1 : 0)
      .number(status.keeps ? 1 : 0)
      .number(status.kept)
      .number(status.reached.begun)
      .number(status.reached.again)
      .take();
}

bool unpack_status(const std::string& bytes, MachineStatus* status) {
  Unpacker fields(bytes);
  status->epoch = fields.number();
  status->members = fields.number_in(0, kMostRanksOfMachine);
  status->asks = fields.number_in(0, 1) != 0;
  status->ready = fields.number_in(0, 1) != 0;
  status->finished = fields.number_in(0, 1) != 0;
  status->keeps = fields.number_in(0, 1) != 0;
  status->kept = fields.number();
  status->reached = {fields.number(), fields.number()};
  return fields.complete();
}

std::string pack_loss(const MachineLoss& loss) {
  std::vector<std::string> failures;
  failures.reserve(loss.failures.size());
  for (const JobEvent& failure : loss.failures) {
    failures.push_back(pack_event(failure));
  }
  return Packer().text(pack_status(loss.status)).texts(failures).take();
}

bool unpack_loss(const std::string& bytes, MachineLoss* loss) {
  Unpacker fields(bytes);
  bool good = unpack_status(fields.text(), &loss->status);
  for (const std::string& text : fields.texts()) {
    good &= unpack_event(text, &loss->failures.emplace_back());
  }
  return good && fields.complete();
}

std::string pack_order(const EpochOrder& order) {
  Packer fields;
  fields.number(order.epoch).text(order.rendezvous);
  fields.number(order.counts.times).number(order.counts.lost);
  fields.number(order.counts.left).number(order.counts.joined);
  fields.number(order.reached.begun).number(order.reached.again);
  fields.number(static_cast<int>(order.ranks.size()));
  for (std::size_t machine = 0; machine < order.ranks.size(); ++machine) {
    fields.number(order.ranks[machine]).number(order.starts[machine]);
  }
  return fields.take();
}

bool unpack_order(const std::string& bytes, EpochOrder* order) {
  Unpacker fields(bytes);
  order->epoch = fields.number();
  order->rendezvous = fields.text();
  order->counts = {fields.number(), fields.number(), fields.number(), fields.number()};
  order->reached = {fields.number(), fields.number()};
  const int machines = fields.number_in(1, kMostRanksOfMachine);
  for (int machine = 0; machine < machines && !fields.failed(); ++machine) {
    order->ranks.push_back(fields.number_in(0, kMostRanksOfMachine));
    order->starts.push_back(fields.number_in(0, order->ranks.back()));
  }
  return fields.complete();
}

std::string pack_rest(const Rest& rest) {
  Packer fields;
  fields.number(rest.lost).number(rest.left).number(static_cast<int>(rest.ranks.size()));
  for (const int ranks : rest.ranks) {
    fields.number(ranks);
  }
  return fields.take();
}

bool unpack_rest(const std::string& bytes, Rest* rest) {
  Unpacker fields(bytes);
  rest->lost = fields.number_in(0, kMostRanksOfMachine);
  rest->left = fields.number_in(0, kMostRanksOfMachine);
  const int machines = fields.number_in(1, kMostRanksOfMachine);
  for (int machine = 0; machine < machines && !fields.failed(); ++machine) {
    rest->ranks.push_back(fields.number_in(0, kMostRanksOfMachine));
  }
  return fields.complete();
}

std::string pack_end(const EpochEnd& end) {
  return Packer().number(end.epoch).number(end.lost ? 1 : 0).text(end.why).take();
}

bool unpack_end(const std::string& bytes, EpochEnd* end) {
  constexpr std::size_t kLongestReason = 4096;
  Unpacker fields(bytes);
  end->epoch = fields.number();
  end->lost = fields.number_in(0, 1) != 0;
  end->why = printable(fields.text(), kLongestReason);
  return fields.complete();
}

}  // namespace trireme::detail
