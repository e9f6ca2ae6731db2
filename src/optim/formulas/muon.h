// See formulas/gradients.h for how formulas are written.

// The momentum moves, and what is to be made orthogonal is the result.
template <class T>
struct MuonMomentum {
  static constexpr const char* kName = "MuonMomentum";
  static constexpr bool kMovesStates = true;
  template <class Transform, class Step>
  MuonMomentum(const Transform& transform, const Step& s)
      : gradients(transform, 0, 0), momentum(s.options.momentum), nesterov(s.options.nesterov) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    m = momentum(m, g);
    return nesterov ? momentum(m, g) : m;
  }

  Gradients<T> gradients;
  Moving<T> momentum;
  bool nesterov;
};
