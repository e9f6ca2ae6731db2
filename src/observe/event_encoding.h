#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// TensorFlow's Event messages as bytes. The few fields that are needed are written by hand: the
// format of protocol buffers is a list of (field number, value), and a library for it would be the
// largest dependency of the project.

namespace trireme::detail {

// When and where an event happened: seconds since 1970, and the step.
struct EventTime {
  double wall_seconds = 0;
  std::int64_t step = 0;
};

std::string version_event(double wall_seconds);
// A run (re)starts: readers drop what was written before of this step and later ones.
std::string session_start_event(const EventTime& time);
std::string scalar_event(const EventTime& time, const std::string& tag, double value);
// Values that are not finite are left out.
std::string histogram_event(const EventTime& time,
                            const std::string& tag,
                            std::span<const float> values);
std::string text_event(const EventTime& time, const std::string& tag, const std::string& text);

// An event as a record of the file: its length, the masked CRC-32C of that, the event, its CRC-32C.
std::string record_of(const std::string& event);
inline constexpr std::size_t kRecordHead = 12;  // bytes before the event
// Of the whole record that begins so; 0: none does.
std::uint64_t record_bytes(std::span<const std::uint8_t, kRecordHead> head);

}  // namespace trireme::detail
