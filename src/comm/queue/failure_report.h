#pragma once

#include <string>

#include "trireme/core/error.h"

namespace trireme::detail {

// Tells the launcher why this rank fails, so that it can name the rank that caused it and choose
// its exit code. Does nothing where no launcher listens. Never throws.
void report_failure(int rank, const CommError& error) noexcept;

// True once the launcher that started this process is gone, so that nobody would end its ranks.
// False where none listens.
bool launcher_has_ended() noexcept;

}  // namespace trireme::detail
