#pragma once

// What a saved state has beside its tensors.

namespace trireme::detail {

inline constexpr const char* kEngineNote = "engine";      // an engine's own progress
inline constexpr const char* kProgressNote = "train";     // a training loop's
inline constexpr const char* kSettingsNote = "settings";  // that it was trained with

}  // namespace trireme::detail
