// See formulas/gradients.h for how formulas are written.

template <class T, bool kLargest>
struct AdamFormula {
  static constexpr const char* kName = kLargest ? "AmsgradRule" : "AdamRule";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  AdamFormula(const Transform& transform, const Step& s)
      : gradients(transform, s.weight_decay, s.l1),
        first(s.beta1),
        second(s.beta2),
        eps(static_cast<T>(s.eps)),
        scaled_step(static_cast<T>(s.scaled_step)),
        shrink(static_cast<T>(s.shrink)),
        shrinks(s.shrink != 1) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v, Lanes<T>& largest) const {
    g = gradients(g, p);
    m = first(m, g);
    v = second(v, hn::Mul(g, g));
    auto used = v;
    if constexpr (kLargest) {
      // As torch::maximum: a NaN stays one.
      largest = hn::IfThenElse(hn::Gt(largest, v), largest, v);
      used = largest;
    }
    if (shrinks) {
      p = hn::Mul(p, all(shrink));
    }
    return hn::Sub(p, hn::Div(hn::Mul(all(scaled_step), m), hn::Add(hn::Sqrt(used), all(eps))));
  }

  Gradients<T> gradients;
  Moving<T> first, second;
  T eps, scaled_step, shrink;
  bool shrinks;
};

template <class T>
using AdamRule = AdamFormula<T, false>;
template <class T>
using AmsgradRule = AdamFormula<T, true>;
