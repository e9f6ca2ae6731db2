#include "launch/etcd_client.h"

#include <nlohmann/json.hpp>

#include "comm/rendezvous/secrets.h"
#include "trireme/core/environment.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

using EtcdJson = nlohmann::json;

constexpr std::size_t kLongestReply = 300;  // in a message
// Codes of gRPC, which the gateway passes on.
constexpr int kNoRoom = 8;
constexpr int kBadArgument = 3;
constexpr int kForbidden = 7;
constexpr int kNotAuthenticated = 16;

// 64-bit numbers are texts in this dialect, and zeros are left out.
std::int64_t number_in(const EtcdJson& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return 0;
  }
  return found->is_string()           ? parse_integer(found->get<std::string>()).value_or(0)
         : found->is_number_integer() ? found->get<std::int64_t>()
                                      : 0;
}

EtcdJson etcd_object(const std::string& text) {
  EtcdJson value = EtcdJson::parse(text, nullptr, false);
  if (!value.is_object()) {
    throw StoreTrouble(concat("expected an answer of etcd's v3 gateway, found \"",
                              printable(text, kLongestReply),
                              "\": is this etcd 3.4 or newer?"),
                       true);
  }
  return value;
}

EtcdJson member_of(const EtcdJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? EtcdJson() : *found;
}

// What an answer that is none means, and what to do.
StoreTrouble trouble_of(const std::string& member, const HttpAnswer& answer, bool has_user) {
  const EtcdJson said = EtcdJson::parse(answer.body, nullptr, false);
  const auto code = said.is_object() ? number_in(said, "code") : 0;
  const EtcdJson error = said.is_object() ? member_of(said, "error") : EtcdJson();
  const std::string text =
      printable(error.is_string() ? error.get<std::string>() : answer.body, kLongestReply);
  const std::string who = concat("etcd at ", member, ": ");
  if (code == kNoRoom && text.find("space") != std::string::npos) {
    return {concat(who,
                   text,
                   " (the alarm NOSPACE): compact and defragment it (etcdctl compact, etcdctl "
                   "defrag), then etcdctl alarm disarm"),
            true};
  }
  if (code == kNotAuthenticated || code == kForbidden ||
      (code == kBadArgument && (text.find("user") != std::string::npos))) {
    return {concat(who,
                   text,
                   has_user ? ": check --store-user, and its password in --store-password-file or "
                              "TRIREME_STORE_PASSWORD; it needs the right to read and write keys "
                              "under /trireme/"
                            : ": it wants a password: give --store-user NAME, and the password in "
                              "--store-password-file or TRIREME_STORE_PASSWORD"),
            true};
  }
  return {concat(who, "expected an answer, found HTTP ", answer.status, ": ", text), false};
}

// Another member, or the same one a little later, may answer.
bool is_of_this_member(const HttpAnswer& answer) {
  return answer.status == 0 || answer.status >= 500;
}

}  // namespace

EtcdClient::EtcdClient(EtcdOptions options, std::unique_ptr<HttpClient> http, Milliseconds patience)
    : options_(std::move(options)), http_(std::move(http)), patience_(patience) {}

HttpAnswer EtcdClient::ask(const std::string& path, const std::string& body) {
  std::vector<std::string> headers = {"Content-Type: application/json"};
  if (!token_.empty()) {
    headers.push_back(concat("Authorization: ", token_));
  }
  return http_->post(
      concat(options_.tls.any() ? "https://" : "http://", options_.members[member_], "/v3/", path),
      body,
      headers,
      patience_);
}

std::string EtcdClient::authenticate() {
  token_.clear();
  const EtcdJson who = {{"name", options_.user}, {"password", options_.password}};
  const HttpAnswer answer = ask("auth/authenticate", who.dump());
  if (answer.status == 200) {
    const EtcdJson token = member_of(etcd_object(answer.body), "token");
    token_ = token.is_string() ? token.get<std::string>() : "";
  } else if (answer.body.find("authentication is not enabled") == std::string::npos &&
             !is_of_this_member(answer)) {
    throw trouble_of(options_.members[member_], answer, true);
  }
  return token_;
}

std::string EtcdClient::call(const std::string& path, const std::string& body) {
  std::string failures;
  bool is_lasting = true;  // if it is so of all members
  for (std::size_t turn = 0; turn < options_.members.size(); ++turn) {
    if (!options_.user.empty() && token_.empty()) {
      authenticate();
    }
    HttpAnswer answer = ask(path, body);
    if (answer.status == 401 && !options_.user.empty() && !authenticate().empty()) {
      answer = ask(path, body);  // tokens run out
    }
    if (answer.status == 200) {
      own_address_ = answer.own_address;
      return answer.body;
    }
    const std::string& member = options_.members[member_];
    if (!is_of_this_member(answer)) {
      throw trouble_of(member, answer, !options_.user.empty());
    }
    is_lasting = is_lasting && answer.is_lasting;
    failures += failures.empty() ? "" : "; ";
    failures +=
        answer.status != 0
            ? trouble_of(member, answer, false).what()
            : concat("etcd at {} does not answer: {}{}",
                     {member,
                      answer.failure,
                      answer.hung_up && !options_.tls.any()
                          ? ", as one that wants TLS does (--store-ca FILE, and --store-cert "
                            "and --store-key where it wants a certificate of ours)"
                          : ""});
    member_ = (member_ + 1) % options_.members.size();
  }
  throw StoreTrouble(
      concat(failures, is_lasting ? ": check --store-ca, --store-cert and --store-key" : ""),
      is_lasting);
}

EtcdClient::Lease EtcdClient::grant(std::int64_t seconds) {
  const EtcdJson answer =
      etcd_object(call("lease/grant", EtcdJson{{"TTL", std::to_string(seconds)}}.dump()));
  return {number_in(answer, "ID"), number_in(answer, "TTL")};
}

EtcdClient::Lease EtcdClient::keep_alive(std::int64_t id) {
  const EtcdJson answer =
      etcd_object(call("lease/keepalive", EtcdJson{{"ID", std::to_string(id)}}.dump()));
  const EtcdJson result = member_of(answer, "result");
  if (!result.is_object()) {  // the gateway has begun to answer before it knew
    throw StoreTrouble(concat("a lease was not renewed: ", printable(answer.dump(), kLongestReply)),
                       false);
  }
  return {id, number_in(result, "TTL")};
}

void EtcdClient::revoke(std::int64_t id) {
  call("lease/revoke", EtcdJson{{"ID", std::to_string(id)}}.dump());
}

std::vector<EtcdClient::Entry> EtcdClient::read(const std::vector<std::string>& keys) {
  EtcdJson wanted = EtcdJson::array();
  for (const std::string& key : keys) {
    wanted.push_back({{"request_range", {{"key", base64_of(key)}}}});
  }
  const EtcdJson answer = etcd_object(call("kv/txn", EtcdJson{{"success", wanted}}.dump()));
  const EtcdJson found = member_of(answer, "responses");
  std::vector<Entry> entries(keys.size());
  for (std::size_t i = 0; i < keys.size() && found.is_array() && i < found.size(); ++i) {
    const EtcdJson range = member_of(found[i], "response_range");
    const EtcdJson values = range.is_object() ? member_of(range, "kvs") : EtcdJson();
    if (values.is_array() && !values.empty() && values[0].is_object()) {
      const EtcdJson value = member_of(values[0], "value");
      entries[i] = {from_base64(value.is_string() ? value.get<std::string>() : "").value_or(""),
                    number_in(values[0], "mod_revision")};
    }
  }
  return entries;
}

bool EtcdClient::write(const std::vector<Unchanged>& as_long_as, const std::vector<Write>& writes) {
  EtcdJson compare = EtcdJson::array();
  for (const Unchanged& each : as_long_as) {
    compare.push_back({{"key", base64_of(each.key)},
                       {"target", "MOD"},
                       {"result", "EQUAL"},
                       {"mod_revision", std::to_string(each.changed)}});
  }
  EtcdJson success = EtcdJson::array();
  for (const Write& each : writes) {
    EtcdJson what = {{"key", base64_of(each.key)}};
    if (each.value) {
      what["value"] = base64_of(*each.value);
      what["lease"] = std::to_string(each.lease);
    }
    success.push_back({{each.value ? "request_put" : "request_delete_range", what}});
  }
  const EtcdJson answer =
      etcd_object(call("kv/txn", EtcdJson{{"compare", compare}, {"success", success}}.dump()));
  const EtcdJson succeeded = member_of(answer, "succeeded");
  return succeeded.is_boolean() && succeeded.get<bool>();
}

}  // namespace trireme::detail
