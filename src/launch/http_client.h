#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/core/deadline.h"

// HTTP by libcurl, which is loaded when it is asked for, as a module beside the program: it brings
// thirty other libraries, and a job without a store needs none of them.

namespace trireme::detail {

// Files in PEM; with any of them the connection is TLS.
struct TlsFiles {
  std::string ca;    // who may have signed the server's certificate
  std::string cert;  // ours, where the server wants one
  std::string key;

  bool any() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

struct HttpAnswer {
  int status = 0;  // 0: none has come, and `failure` says why
  std::string body;
  std::string failure;
  bool is_lasting = false;  // the failure will be the same next time: certificates
  bool hung_up = false;     // the other side has, without a word
  std::string own_address;  // of this machine, in the connection
};

class HttpClient {
 public:
  virtual ~HttpClient() = default;
  // Blocks, but no longer than `limit`. `headers` are whole lines.
  virtual HttpAnswer post(const std::string& url,
                          const std::string& body,
                          const std::vector<std::string>& headers,
                          Milliseconds limit) = 0;
};

// For one thread at a time. Throws ConfigError where there is no such module.
std::unique_ptr<HttpClient> load_http_client(const TlsFiles& files);

// What the module offers.
using MakeHttpClient = HttpClient* (*)(const TlsFiles& files);
inline constexpr char kMakeHttpClient[] = "trireme_make_http_client";

}  // namespace trireme::detail
