// What each rule's updates depend on, as a text.

#include <charconv>
#include <initializer_list>
#include <string>
#include <utility>

#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

using Numbers = std::initializer_list<std::pair<const char*, double>>;

std::string listed(const Numbers& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + detail::exact_text(value);
  }
  return text;
}

// Adam and its relatives have the same ones.
template <class Options>
std::string adaptive(const Options& o) {
  return listed({{"lr", o.lr},
                 {"beta1", o.beta1},
                 {"beta2", o.beta2},
                 {"eps", o.eps},
                 {"weight_decay", o.weight_decay},
                 {"l1", o.l1}});
}

}  // namespace

std::string detail::exact_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string Optimizer::settings() const {
  return listed({{"lr", learning_rate()}});
}

std::string Sgd::settings() const {
  return listed({{"lr", options_.lr},
                 {"momentum", options_.momentum},
                 {"dampening", options_.dampening},
                 {"weight_decay", options_.weight_decay},
                 {"l1", options_.l1},
                 {"nesterov", options_.nesterov ? 1 : 0}});
}

std::string Adam::settings() const {
  return adaptive(options_);
}

std::string AdamW::settings() const {
  return adaptive(options_);
}

std::string Lamb::settings() const {
  return adaptive(options_);
}

std::string Adagrad::settings() const {
  return listed({{"lr", options_.lr},
                 {"lr_decay", options_.lr_decay},
                 {"eps", options_.eps},
                 {"weight_decay", options_.weight_decay},
                 {"l1", options_.l1}});
}

std::string Lion::settings() const {
  return listed({{"lr", options_.lr},
                 {"beta1", options_.beta1},
                 {"beta2", options_.beta2},
                 {"weight_decay", options_.weight_decay},
                 {"l1", options_.l1}});
}

}  // namespace trireme
