#pragma once

#include <functional>
#include <memory>

#include "trireme/comm/world.h"

namespace trireme {

// Joins the job this process was started for and runs `training` in its world. When ranks of an
// elastic job (`trireme run --elastic MIN:MAX`) are lost, it joins the world of those that are left
// and of those started in place of the lost, and runs `training` again; until it returns. What
// belongs to a world, such as an engine, is made inside `training`, which begins with its newest
// checkpoint:
//
//   return trireme::run_elastic([&](const std::shared_ptr<trireme::World>& world) {
//     trireme::Engine engine(make_model(), trireme::AdamW({.lr = 3e-4}), {.zero = 2}, world);
//     trireme::Checkpoints checkpoints("checkpoints", world);
//     checkpoints.resume(engine);
//     ...
//   });
//
// A rank that is no longer wanted (`trireme scale`) returns 0.
//
// Outside of an elastic job it is `training(init(options))`. Errors other than a loss, and a loss
// that ends the job, are thrown. Any rank may be lost; survivors may be numbered anew.
int run_elastic(const std::function<int(const std::shared_ptr<World>& world)>& training,
                const InitOptions& options = {});

}  // namespace trireme
