#include "recoveries.h"

#include <algorithm>
#include <map>

#include "number_text.h"
#include "samples.h"
#include "trireme/core/table.h"

namespace trireme::bench {

std::string recoveries_text(const std::vector<Recovery>& recoveries) {
  std::map<std::string, std::vector<Recovery>> kinds;
  for (const Recovery& recovery : recoveries) {
    kinds[recovery.kind].push_back(recovery);
    kinds["all"].push_back(recovery);
  }
  Table table({"fault", "times", "s to the next step", "at most", "steps computed again, at most"});
  for (const auto& [kind, list] : kinds) {
    std::vector<double> seconds;
    std::int64_t again = 0;
    for (const Recovery& recovery : list) {
      seconds.push_back(recovery.seconds);
      again = std::max(again, recovery.again);
    }
    table.add({kind,
               std::to_string(list.size()),
               number_text(median(seconds)),
               number_text(*std::max_element(seconds.begin(), seconds.end())),
               std::to_string(again)});
  }
  return table.text();
}

}  // namespace trireme::bench
