#pragma once

#include <memory>
#include <string>
#include <vector>

namespace trireme::detail {

struct EngineParts;

// The engines of a backward pass that several share, in the order in which all ranks name them.
// They end a step together where one of them is given up.
struct SharedPasses {
  struct Member {
    EngineParts* engine = nullptr;
    std::weak_ptr<const void> alive{};  // gone with the engine
  };
  std::vector<Member> members;
};

// They share their passes from now on, and with no others; one alone shares none.
void share_passes(const std::vector<EngineParts*>& engines);

// Those that share an engine's passes, with itself.
std::vector<EngineParts*> engines_of(EngineParts& engine);

// EngineBase::give_up() of all of them.
[[noreturn]] void give_up_shared(EngineParts& engine, const std::string& reason);

}  // namespace trireme::detail
