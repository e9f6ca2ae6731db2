#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/http_client.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// Where a store is, and who asks.
struct EtcdOptions {
  std::vector<std::string> members;  // "HOST:PORT"
  TlsFiles tls;
  std::string user;  // empty: nobody
  std::string password;
};

// What was asked for was not done, or nobody knows whether it was. `is_lasting`: asking again will
// not help; what to do is in the text.
class StoreTrouble : public Error {
 public:
  StoreTrouble(const std::string& text, bool is_lasting) : Error(text), is_lasting_(is_lasting) {}
  bool is_lasting() const { return is_lasting_; }

 private:
  bool is_lasting_;
};

// An etcd of several members, by the JSON gateway of its version 3. Whatever it says holds for the
// majority of them, by Raft: a member that has lost the others does not answer. Each call blocks,
// for `patience` per member at most; it begins with the member that has answered last. Throws
// StoreTrouble. For one thread at a time.
class EtcdClient {
 public:
  EtcdClient(EtcdOptions options, std::unique_ptr<HttpClient> http, Milliseconds patience);

  struct Lease {
    std::int64_t id = 0;
    std::int64_t seconds = 0;  // 0: it has run out
  };
  Lease grant(std::int64_t seconds);
  Lease keep_alive(std::int64_t id);
  // With all keys that were put under it.
  void revoke(std::int64_t id);

  struct Entry {
    std::string value;
    std::int64_t changed = 0;  // the revision in which it was put; 0: there is no such key
  };
  // At one instant.
  std::vector<Entry> read(const std::vector<std::string>& keys);

  struct Unchanged {
    std::string key;
    std::int64_t changed = 0;
  };
  struct Write {
    std::string key;
    std::optional<std::string> value;  // nothing: the key is removed
    std::int64_t lease = 0;            // 0: none
  };
  // All of it, or nothing and false where a key is not as in `as_long_as`.
  bool write(const std::vector<Unchanged>& as_long_as, const std::vector<Write>& writes);

  // Of this machine, on the way to the member that has answered last.
  const std::string& own_address() const { return own_address_; }

 private:
  std::string call(const std::string& path, const std::string& body);
  // As the answer, or why not: a failure of this member.
  HttpAnswer ask(const std::string& path, const std::string& body);
  std::string authenticate();

  EtcdOptions options_;
  std::unique_ptr<HttpClient> http_;
  Milliseconds patience_;
  std::size_t member_ = 0;
  std::string token_;  // of a user who has proven to be one
  std::string own_address_;
};

}  // namespace trireme::detail
