// See formulas/gradients.h for how formulas are written.

// The direction: the gradient over the root of its mean square, which is at least `least`. The
// state is, of a vector, the mean squares, which move (with kMoves, for good); of a matrix what
// rows and columns say of them.
template <class T, bool kVector, bool kMoves>
struct AdafactorFormula {
  static constexpr const char* kName = !kVector ? "AdafactorOfMatrix"
                                       : kMoves ? "AdafactorOfVector"
                                                : "AdafactorLook";
  static constexpr bool kMovesStates = kMoves;
  template <class Transform, class Step>
  AdafactorFormula(const Transform& transform, const Step& s)
      : gradients(transform, 0, 0),
        share(static_cast<T>(s.share)),
        least(static_cast<T>(s.eps1) * static_cast<T>(s.eps1)),
        first(s.share == 1) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& square, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    g = gradients(g, p);
    if constexpr (kVector) {
      const auto now = hn::Mul(g, g);
      square = first ? now : hn::Add(square, hn::Mul(all(share), hn::Sub(now, square)));
    }
    const auto held = hn::IfThenElse(hn::Lt(square, all(least)), all(least), square);
    return hn::Div(g, hn::Sqrt(held));
  }

  Gradients<T> gradients;
  T share, least;
  bool first;
};

template <class T>
using AdafactorOfVector = AdafactorFormula<T, true, true>;
template <class T>
using AdafactorLook = AdafactorFormula<T, true, false>;
template <class T>
using AdafactorOfMatrix = AdafactorFormula<T, false, false>;
