// See formulas/gradients.h for how formulas are written.

template <class T>
struct TransformedGradient {
  static constexpr const char* kName = "TransformedGradient";
  static constexpr bool kMovesStates = false;
  template <class Transform, class Step>
  TransformedGradient(const Transform& transform, const Step& /*step*/)
      : gradients(transform, 0, 0) {}
  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& /*a*/, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    return gradients(g, p);
  }
  Gradients<T> gradients;
};

// What it is given as gradient is the direction.
template <class T>
struct DirectionRule {
  static constexpr const char* kName = "DirectionRule";
  static constexpr bool kMovesStates = false;
  template <class Transform, class Step>
  DirectionRule(const Transform& /*transform*/, const Step& s)
      : shrink(static_cast<T>(s.shrink)), rate(static_cast<T>(s.rate)) {}
  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> u, Lanes<T>& /*a*/, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    return hn::Sub(hn::Mul(p, all(shrink)), hn::Mul(all(rate), u));
  }
  T shrink, rate;
};

template <class T>
struct DividedDirection {
  static constexpr const char* kName = "DividedDirection";
  static constexpr bool kMovesStates = false;
  template <class Transform, class Step>
  DividedDirection(const Transform& /*transform*/, const Step& s)
      : divisor(static_cast<T>(s.divisor)) {}
  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> /*g*/, Lanes<T>& /*a*/, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    return hn::Div(p, all(divisor));
  }
  T divisor;
};
