#include "launch/http_client.h"

#include "comm/transport/transport_module.h"

namespace trireme::detail {

std::unique_ptr<HttpClient> load_http_client(const TlsFiles& files) {
  const auto make = reinterpret_cast<MakeHttpClient>(
      module_function("http",
                      kMakeHttpClient,
                      "--store needs it; build Trireme where libcurl (libcurl4-openssl-dev) is "
                      "installed",
                      false));
  return std::unique_ptr<HttpClient>(make(files));
}

}  // namespace trireme::detail
