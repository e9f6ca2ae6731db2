#include "settings/offload_place.h"

#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {

OffloadPlace offload_place(const TrainSettings& settings) {
  constexpr const char* kDisk = "disk:";
  const std::string& text = settings.offload;
  OffloadPlace place;
  if (text == "optimizer") {
    place.host = true;
  } else if (text.starts_with(kDisk)) {
    place.folder = text.substr(std::char_traits<char>::length(kDisk));
  }
  TRIREME_CHECK(text == "none" || place.any(),
                "offload: expected none, optimizer or disk:DIR, with a folder, found \"{}\"",
                {text});
  return place;
}

namespace detail {

void check_offload(const TrainSettings& s) {
  if (!offload_place(s).any()) {
    return;
  }
  const auto refuse = [&](bool asked, const std::string& name, const char* why) {
    TRIREME_CHECK(!asked,
                  "offload: {} does not go with {} = {}, {}: leave one of them out",
                  {s.offload, name, value_text(name, s), why});
  };
  const auto rule = make_optimizer(s.optimizer, {});
  refuse(!rule->passes().empty() || rule->takes_whole_parameters(),
         "optimizer",
         "which looks at whole parameters before it updates them");
  refuse(model_kind(s.model).samples == SampleKind::kSparse,
         "model",
         "whose table is updated by rows here and there");
  refuse(s.round_weights != "none", "round_weights", "which keeps masters beside the parameters");
  refuse(s.prune > 0, "prune", "which looks at masters between updates");
  refuse(s.sync != Synchronisation::kExact,
         "sync",
         "where states are averaged, or updated as gradients come");
}

}  // namespace detail
}  // namespace trireme
