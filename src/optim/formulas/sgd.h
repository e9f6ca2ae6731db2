// See formulas/gradients.h for how formulas are written.

template <class T>
struct SgdRule {
  static constexpr const char* kName = "SgdRule";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  SgdRule(const Transform& transform, const Step& s)
      : gradients(transform, s.options.weight_decay, s.options.l1),
        lr(static_cast<T>(s.lr)),
        momentum(static_cast<T>(s.options.momentum)),
        share(static_cast<T>(1 - s.options.dampening)),
        has_momentum(s.options.momentum != 0),
        nesterov(s.options.nesterov),
        first(s.first) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    if (has_momentum) {
      m = first ? g : hn::Add(hn::Mul(all(momentum), m), hn::Mul(all(share), g));
      g = nesterov ? hn::Add(g, hn::Mul(all(momentum), m)) : m;
    }
    return hn::Sub(p, hn::Mul(all(lr), g));
  }

  Gradients<T> gradients;
  T lr, momentum, share;
  bool has_momentum, nesterov, first;
};
