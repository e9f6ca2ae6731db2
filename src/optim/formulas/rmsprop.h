// See formulas/gradients.h for how formulas are written.

// States: the mean square, then the momentum and the mean, those of them that are used.
template <class T, bool kMomentum, bool kCentered>
struct RmspropFormula {
  static constexpr const char* kName = kMomentum ? (kCentered ? "WholeRmsprop" : "MomentumRmsprop")
                                                 : (kCentered ? "CenteredRmsprop" : "PlainRmsprop");
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  RmspropFormula(const Transform& transform, const Step& s)
      : gradients(transform, s.options.weight_decay, s.options.l1),
        moving(s.options.alpha),
        lr(static_cast<T>(s.lr)),
        eps(static_cast<T>(s.options.eps)),
        momentum(static_cast<T>(s.options.momentum)) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& square, Lanes<T>& b, Lanes<T>& c) const {
    g = gradients(g, p);
    square = moving(square, hn::Mul(g, g));
    auto variance = square;
    if constexpr (kCentered) {
      Lanes<T>& mean = kMomentum ? c : b;
      mean = moving(mean, g);
      variance = hn::Sub(square, hn::Mul(mean, mean));
      // Rounding can make it negative, where it has no root.
      variance = hn::IfThenElse(hn::Lt(variance, all(T{0})), all(T{0}), variance);
    }
    const auto step = hn::Div(g, hn::Add(hn::Sqrt(variance), all(eps)));
    if constexpr (kMomentum) {
      b = hn::Add(hn::Mul(all(momentum), b), step);
      return hn::Sub(p, hn::Mul(all(lr), b));
    } else {
      return hn::Sub(p, hn::Mul(all(lr), step));
    }
  }

  Gradients<T> gradients;
  Moving<T> moving;
  T lr, eps, momentum;
};

template <class T>
using PlainRmsprop = RmspropFormula<T, false, false>;
template <class T>
using MomentumRmsprop = RmspropFormula<T, true, false>;
template <class T>
using CenteredRmsprop = RmspropFormula<T, false, true>;
template <class T>
using WholeRmsprop = RmspropFormula<T, true, true>;
