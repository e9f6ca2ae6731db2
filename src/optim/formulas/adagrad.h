// See formulas/gradients.h for how formulas are written.

template <class T>
struct AdagradRule {
  static constexpr const char* kName = "AdagradRule";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  AdagradRule(const Transform& transform, const Step& s)
      : gradients(transform, s.options.weight_decay, s.options.l1),
        lr(static_cast<T>(s.lr)),
        eps(static_cast<T>(s.options.eps)) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& sum, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    sum = hn::Add(sum, hn::Mul(g, g));
    return hn::Sub(p, hn::Div(hn::Mul(all(lr), g), hn::Add(hn::Sqrt(sum), all(eps))));
  }

  Gradients<T> gradients;
  T lr, eps;
};
