#pragma once

#include "parallel/memory/parameter_memory.h"
#include "parallel/model/half_autocast.h"

namespace trireme::detail {

// Parameters are being changed, by an optimizer or from outside: from when nobody reads them any
// more until everybody can read the new values. It is made and finished by all ranks together. One
// that ends by an exception is not finished by its destructor, in which the others cannot be waited
// for: whoever has it may still do so, as Engine::unwrap() does.
class Update {
 public:
  Update(const ModelPlan& plan, ParameterMemory& memory) : plan_(plan), memory_(memory) {
    memory_.begin_update();
  }
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // Before anything is written: of a sparse unit no more than these rows of this rank's will be.
  // Collective.
  void only_rows(std::size_t unit, std::span<const std::int64_t> rows) {
    memory_.announce_rows(unit, rows);
  }
  // This rank has written what it updates of a unit: may begin to tell the others.
  void written(std::size_t unit) { memory_.updated(unit); }
  // A graph that was built with this parameter before must not be used after.
  void changed(std::size_t parameter) {
    plan_.parameters[parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }
  void finish() {
    memory_.finish_update();
    forget_casts();
  }

 private:
  const ModelPlan& plan_;
  ParameterMemory& memory_;
};

}  // namespace trireme::detail
