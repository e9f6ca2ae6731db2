// See formulas/gradients.h for how formulas are written.

// The moments move, and the direction of the step is the result.
template <class T>
struct LambDirection {
  static constexpr const char* kName = "LambDirection";
  static constexpr bool kMovesStates = false;
  template <class Transform, class Step>
  LambDirection(const Transform& transform, const Step& s)
      : gradients(transform, 0, s.options.l1),
        first(s.options.beta1),
        second(s.options.beta2),
        first_factor(static_cast<T>(1 / s.first_correction)),
        second_factor(static_cast<T>(1 / s.second_root)),
        eps(static_cast<T>(s.options.eps)),
        decay(static_cast<T>(s.options.weight_decay)) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    m = first(m, g);
    v = second(v, hn::Mul(g, g));
    const auto root = hn::Mul(hn::Sqrt(v), all(second_factor));
    const auto direction = hn::Div(hn::Mul(m, all(first_factor)), hn::Add(root, all(eps)));
    return hn::Add(direction, hn::Mul(all(decay), p));
  }

  Gradients<T> gradients;
  Moving<T> first, second;
  T first_factor, second_factor, eps, decay;
};

// The same direction, now with its length.
template <class T>
struct LambRule {
  static constexpr const char* kName = "LambRule";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  LambRule(const Transform& transform, const Step& s)
      : direction(transform, s), rate(static_cast<T>(s.rate)) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v, Lanes<T>& c) const {
    return hn::Sub(p, hn::Mul(all(rate), direction(p, g, m, v, c)));
  }

  LambDirection<T> direction;
  T rate;
};
