#include "comm/rendezvous/handshake.h"

#include "comm/rendezvous/fixed_text.h"
#include "comm/rendezvous/packing.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kLongestMessage = 2048;  // of a verdict

// A refusal may come in the place of a challenge.
enum class Word : std::uint8_t { kChallenge = 1, kVerdict = 2 };

std::string magic_of(const Pass& pass) {
  return "trireme " + pass.purpose;
}

std::string root_of(const std::string& token,
                    const std::string& secret,
                    const std::string& greeting,
                    const std::string& host_key) {
  return secret.empty() ? ""
                        : hmac_sha256(sha256(token),
                                      Packer().text(secret).text(greeting).text(host_key).take());
}

std::string derive(const std::string& root, const char* what, const std::string& said) {
  return hmac_sha256(root, Packer().text(what).text(said).take());
}

const char* word_of(bool admitted) {
  return admitted ? "admitted" : "refused";
}

constexpr char kHostProof[] = "host";
constexpr char kJoinerProof[] = "joiner";
constexpr char kHostSends[] = "host sends";
constexpr char kJoinerSends[] = "joiner sends";

}  // namespace

JoiningSide::JoiningSide(const Pass& pass)
    : token_(pass.token),
      greeting_(Packer()
                    .text(magic_of(pass))
                    .number(kProtocol)
                    .text(sha256(pass.job))
                    .number(pass.epoch)
                    .number(pass.token.empty() ? 0 : 1)
                    .text(pair_.open)
                    .take()) {}

bool JoiningSide::take_challenge(const std::string& bytes) {
  Unpacker fields(bytes);
  const std::int64_t word = fields.number();
  const std::string theirs = fields.text();
  const std::string proof = fields.text();
  root_ = root_of(token_, shared_secret(pair_, theirs), greeting_, theirs);
  const bool whole = fields.complete() && word == static_cast<int>(Word::kChallenge);
  genuine_ = whole && !root_.empty() && same_secret(proof, derive(root_, kHostProof, ""));
  return whole;
}

std::string JoiningSide::introduce(const std::string& said) {
  if (!genuine_) {
    return Packer().text("").take();
  }
  said_ = said;
  return Packer().text(Seal(derive(root_, kJoinerProof, "")).close(said)).take();
}

std::optional<Admission> JoiningSide::read_verdict(const std::string& bytes) const {
  Unpacker fields(bytes);
  const std::int64_t word = fields.number();
  Admission verdict;
  verdict.admitted = fields.number_in(0, 1) != 0;
  const std::string message = fields.text();
  const std::string proof = fields.text();
  verdict.genuine =
      genuine_ && same_secret(proof, derive(root_, word_of(verdict.admitted), message));
  verdict.message = printable(message, kLongestMessage);
  const bool complete = fields.complete() && word == static_cast<int>(Word::kVerdict);
  return complete ? std::optional(verdict) : std::nullopt;
}

SessionKeys JoiningSide::keys() const {
  return {derive(root_, kJoinerSends, said_), derive(root_, kHostSends, said_)};
}

std::optional<std::string> HostingSide::take_greeting(const std::string& bytes, std::string* why) {
  Unpacker fields(bytes);
  const bool is_ours = fields.text() == magic_of(*pass_) && fields.number() == kProtocol;
  const std::string job = fields.text();
  epoch_ = fields.number();
  has_token_ = fields.number() != 0;
  const std::string theirs = fields.text();
  const KeyPair pair = make_key_pair();
  // Of the greeting's own bytes, so that both sides have other roots if it was changed on the way.
  root_ = root_of(pass_->token, shared_secret(pair, theirs), bytes, pair.open);
  if (!is_ours || !fields.complete() || root_.empty()) {
    *why = concat("it does not speak version ",
                  kProtocol,
                  " of the rendezvous protocol: use the same version of Trireme everywhere");
    return std::nullopt;
  }
  if (job != sha256(pass_->job)) {
    *why = "it belongs to another job (TRIREME_JOB)";
    return std::nullopt;
  }
  return Packer()
      .number(static_cast<int>(Word::kChallenge))
      .text(pair.open)
      .text(derive(root_, kHostProof, ""))
      .take();
}

std::optional<std::string> HostingSide::take_introduction(const std::string& bytes) {
  Unpacker fields(bytes);
  const std::string sealed = fields.text();
  proven_ = fields.complete() && Seal(derive(root_, kJoinerProof, "")).open(sealed, &said_);
  return proven_ ? std::optional(said_) : std::nullopt;
}

std::string HostingSide::verdict(bool admitted, const std::string& message) const {
  const std::string said = shortened(message, kLongestMessage);
  return Packer()
      .number(static_cast<int>(Word::kVerdict))
      .number(admitted ? 1 : 0)
      .text(said)
      .text(proven_ ? derive(root_, word_of(admitted), said) : "")
      .take();
}

SessionKeys HostingSide::keys() const {
  return {derive(root_, kHostSends, said_), derive(root_, kJoinerSends, said_)};
}

}  // namespace trireme::detail
