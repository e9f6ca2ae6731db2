// The module trireme_http.so.

#include <array>

#include <curl/curl.h>

#include "launch/http_client.h"

namespace trireme::detail {
namespace {

// What is wrong with certificates does not pass. Where it is ours that is missing, TLS 1.3 says so
// in its first answer.
bool is_about_certificates(CURLcode code, const std::string& error) {
  return (code == CURLE_RECV_ERROR && error.find("alert") != std::string::npos) ||
         code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION ||
         code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE;
}

std::size_t append(char* data, std::size_t size, std::size_t count, void* text) {
  constexpr std::size_t kLongestAnswer = 1 << 20;
  auto* body = static_cast<std::string*>(text);
  if (body->size() + size * count > kLongestAnswer) {
    return 0;  // which ends the transfer
  }
  body->append(data, size * count);
  return size * count;
}

class CurlClient final : public HttpClient {
 public:
  explicit CurlClient(const TlsFiles& files) : files_(files), curl_(curl_easy_init()) {}
  ~CurlClient() override { curl_easy_cleanup(curl_); }
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;

  HttpAnswer post(const std::string& url,
                  const std::string& body,
                  const std::vector<std::string>& headers,
                  Milliseconds limit) override {
    HttpAnswer answer;
    std::array<char, CURL_ERROR_SIZE> error{};
    curl_slist* lines = nullptr;
    for (const std::string& header : headers) {
      lines = curl_slist_append(lines, header.c_str());
    }
    curl_easy_reset(curl_);  // connections stay
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_POSTFIELDS, body.c_str());
    set(CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    set(CURLOPT_HTTPHEADER, lines);
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(limit.count()));
    set(CURLOPT_NOSIGNAL, 1L);  // there are other threads
    set(CURLOPT_NOPROXY, "*");  // members are machines nearby
    set(CURLOPT_TCP_NODELAY, 1L);
    set(CURLOPT_WRITEFUNCTION, append);
    set(CURLOPT_WRITEDATA, &answer.body);
    set(CURLOPT_ERRORBUFFER, error.data());
    const std::array<std::pair<CURLoption, const std::string*>, 3> files = {
        {{CURLOPT_CAINFO, &files_.ca},
         {CURLOPT_SSLCERT, &files_.cert},
         {CURLOPT_SSLKEY, &files_.key}}};
    for (const auto& [option, file] : files) {
      if (!file->empty()) {
        set(option, file->c_str());
      }
    }
    const CURLcode code = curl_easy_perform(curl_);
    curl_slist_free_all(lines);
    if (code != CURLE_OK) {
      answer.failure = error[0] != '\0' ? error.data() : curl_easy_strerror(code);
      answer.is_lasting = is_about_certificates(code, answer.failure);
      answer.hung_up = code == CURLE_GOT_NOTHING;
      return answer;
    }
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
    char* address = nullptr;
    curl_easy_getinfo(curl_, CURLINFO_LOCAL_IP, &address);
    answer.own_address = address == nullptr ? "" : address;
    return answer;
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    curl_easy_setopt(curl_, option, value);
  }

  const TlsFiles files_;
  CURL* curl_;
};

}  // namespace
}  // namespace trireme::detail

// NOLINTNEXTLINE(misc-use-internal-linkage): found by its name
extern "C" __attribute__((visibility("default"))) trireme::detail::HttpClient*
trireme_make_http_client(const trireme::detail::TlsFiles& files) {
  return new trireme::detail::CurlClient(files);
}
