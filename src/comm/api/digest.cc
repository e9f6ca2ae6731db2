#include "comm/api/digest.h"

#include <sodium.h>

namespace trireme::detail {

std::string hex_digest(const std::string& text) {
  unsigned char digest[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(digest, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  char hex[2 * sizeof(digest) + 1];
  sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
  return {hex, 32};
}

}  // namespace trireme::detail
