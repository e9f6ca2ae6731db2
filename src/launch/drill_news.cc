#include "launch/drill_news.h"

#include <chrono>

#include "comm/rendezvous/packing.h"
#include "trireme/core/printable.h"

namespace trireme::detail {

std::int64_t drill_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string pack_news(const DrillNews& news) {
  return Packer()
      .number(static_cast<int>(news.kind))
      .number(drill_clock() - news.nanoseconds)
      .number(news.number)
      .number(static_cast<int>(news.fault))
      .number(static_cast<int>(news.phase))
      .number(news.step)
      .number(news.epoch)
      .number(news.rank)
      .number(news.ranks)
      .number(news.pid)
      .number(news.peer)
      .number(news.struck)
      .text(news.text)
      .take();
}

bool unpack_news(const std::string& bytes, DrillNews* news) {
  constexpr std::size_t kLongestText = 256;
  constexpr int kMostRanks = 1 << 20;
  Unpacker fields(bytes);
  news->kind =
      static_cast<DrillNews::Kind>(fields.number_in(0, static_cast<int>(DrillNews::Kind::kWoke)));
  news->nanoseconds = drill_clock() - fields.number();
  news->number = static_cast<std::uint32_t>(fields.number());
  news->fault = static_cast<DrillKind>(fields.number_in(0, static_cast<int>(kLastDrillKind)));
  news->phase = static_cast<PulsePhase>(fields.number_in(0, static_cast<int>(PulsePhase::kTaken)));
  news->step = fields.number();
  news->epoch = fields.number();
  news->rank = fields.number_in(-1, kMostRanks);
  news->ranks = fields.number_in(0, kMostRanks);
  news->pid = fields.number_in(0, kAny);
  news->peer = fields.number_in(-1, kMostRanks);
  news->struck = fields.number_in(-1, kMostRanks);
  news->text = printable(fields.text(), kLongestText);
  return fields.complete();
}

std::string pack_drill_order(const DrillOrder& order) {
  return Packer()
      .number(order.step)
      .number(order.save)
      .number(order.epoch)
      .number(order.heard)
      .number(order.age)
      .number(order.strike ? static_cast<int>(*order.strike) : -1)
      .take();
}

bool unpack_drill_order(const std::string& bytes, DrillOrder* order) {
  Unpacker fields(bytes);
  order->step = fields.number();
  order->save = fields.number();
  order->epoch = fields.number();
  order->heard = static_cast<std::uint32_t>(fields.number());
  order->age = fields.number();
  const int strike = fields.number_in(-1, static_cast<int>(kLastDrillKind));
  order->strike = strike >= 0 && is_of_launchers(static_cast<DrillKind>(strike))
                      ? std::make_optional(static_cast<DrillKind>(strike))
                      : std::nullopt;
  return fields.complete();
}

}  // namespace trireme::detail
