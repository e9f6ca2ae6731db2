#include "traffic.h"

#include <fstream>
#include <sstream>
#include <string>

namespace trireme::bench {
namespace {

// What the link carries for a byte of a message: a frame of 1514 bytes, headers of Ethernet, IP and
// TCP included, has 1448 of them (tc -s qdisc counts the same).
constexpr double kBytesOnTheWire = 1514.0 / 1448;

}  // namespace

Traffic traffic_of(const World& world) {
  Traffic traffic{.ledger = world.use().network_bytes};
  if (world.machines() > 1 && world.local_rank() == 0) {
    std::ifstream file("/proc/net/dev");
    for (std::string line; std::getline(file, line);) {
      const std::size_t colon = line.find(':');
      if (colon == std::string::npos || line.find("lo:") != std::string::npos) {
        continue;
      }
      std::istringstream numbers(line.substr(colon + 1));
      std::int64_t number = 0;
      for (int column = 0; column < 9; ++column) {  // the ninth: bytes sent
        numbers >> number;
      }
      traffic.interfaces += number;
    }
  }
  return traffic;
}

double link_ms(double bytes, int megabits) {
  return bytes * kBytesOnTheWire * 8 / (megabits * 1e3);
}

}  // namespace trireme::bench
