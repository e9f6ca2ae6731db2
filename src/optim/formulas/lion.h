// See formulas/gradients.h for how formulas are written.

template <class T>
struct LionRule {
  static constexpr const char* kName = "LionRule";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  LionRule(const Transform& transform, const Step& s)
      : gradients(transform, 0, s.options.l1),
        direction(s.options.beta1),
        momentum(s.options.beta2),
        lr(static_cast<T>(s.lr)),
        shrink(static_cast<T>(1 - s.lr * s.options.weight_decay)),
        shrinks(1 - s.lr * s.options.weight_decay != 1) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    const auto sign = Gradients<T>::sign(direction(m, g));
    m = momentum(m, g);
    if (shrinks) {
      p = hn::Mul(p, all(shrink));
    }
    return hn::Sub(p, hn::Mul(all(lr), sign));
  }

  Gradients<T> gradients;
  Moving<T> direction, momentum;
  T lr, shrink;
  bool shrinks;
};
