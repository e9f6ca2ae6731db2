#include "checkpoint/header_members.h"

#include <algorithm>
#include <unordered_set>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

// A header has three: names, what is said of a tensor, its shape. A few more may be of others.
constexpr int kMostLevels = 16;

// Takes what the parser finds, piece by piece.
class MemberReader final : public Json::json_sax_t {
 public:
  explicit MemberReader(const RefuseText& refuse) : refuse_(refuse) {}
  JsonMembers take() { return std::move(members_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) override { return add(value); }
  bool number_float(Json::number_float_t value, const std::string& /*text*/) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) override { return false; }  // not in texts

  bool start_object(std::size_t /*members*/) override {
    if (!begun_) {
      begun_ = true;
      return true;
    }
    return open(Json::object());
  }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const bool is_new = open_.empty() ? names_.insert(name).second : !open_.back()->contains(name);
    if (!is_new) {
      refuse_(0,
              concat("expected each name once, found \"",
                     name,
                     "\" twice: the file is damaged or made to mislead; write it again"));
    }
    if (open_.empty()) {
      members_.emplace_back(name, nullptr);
    } else {
      name_ = std::move(name);
    }
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const Json::exception& error) override {
    // It counts from 1. A number that no double holds is an error of no place.
    const bool has_place = dynamic_cast<const Json::parse_error*>(&error) != nullptr;
    refuse_(has_place ? std::max<std::size_t>(position, 1) - 1 : 0,
            concat("expected the JSON header: ", error.what()));
    return false;
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json container) {
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    if (!open_.empty()) {
      open_.pop_back();
    }
    return true;
  }

  // Where the value now is: nothing is added to its container before it is complete itself.
  Json* place(Json value) {
    if (!begun_) {
      refuse_(0, concat("expected the JSON header to be an object, found ", value.type_name()));
    }
    if (open_.empty()) {
      members_.back().second = std::move(value);
      return &members_.back().second;
    }
    Json& container = *open_.back();
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    Json& member = container[name_];
    member = std::move(value);
    return &member;
  }

  const RefuseText& refuse_;
  bool begun_ = false;  // with the object that all members are in
  JsonMembers members_;
  std::unordered_set<std::string> names_;
  std::vector<Json*> open_;  // arrays and objects inside the last member
  std::string name_;         // of the next member of the innermost object
};

}  // namespace

JsonMembers read_members(std::string_view text, const RefuseText& refuse) {
  if (const auto at = json_too_deep_at(text, kMostLevels)) {
    refuse(*at, concat("expected a JSON header of at most ", kMostLevels, " levels, found more"));
  }
  MemberReader reader(refuse);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace trireme::detail
