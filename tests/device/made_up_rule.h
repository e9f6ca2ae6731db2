// An update rule for tests, as those of src/optim are written. Included by whoever says what `hn`
// and `Lanes` are: Highway's vectors, or one element at a time, as a GPU's threads have it.

template <class T>
Lanes<T> made_up_all(T value) {
  return hn::Set(hn::ScalableTag<T>(), value);
}

template <class T>
struct MadeUpRule {
  static constexpr bool kMovesStates = true;
  explicit MadeUpRule(const MadeUpConstants& constants)
      : rate(static_cast<T>(constants.rate)), decay(static_cast<T>(constants.decay)) {}

  Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& a, Lanes<T>& b, Lanes<T>& c) const {
    a = hn::Add(hn::Mul(made_up_all(decay), a), g);
    b = hn::Add(hn::Mul(made_up_all(decay), b), hn::Mul(g, g));
    c = hn::IfThenElse(hn::Gt(b, c), b, c);
    const auto root = hn::Add(hn::Sqrt(c), made_up_all(rate));
    return hn::Sub(p, hn::Div(hn::Mul(made_up_all(rate), a), root));
  }

  T rate, decay;
};

// Returns what it is interested in and leaves everything as it is.
template <class T>
struct MadeUpLook {
  static constexpr bool kMovesStates = false;
  explicit MadeUpLook(const MadeUpConstants& constants) : rate(static_cast<T>(constants.rate)) {}

  Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& a, Lanes<T>&) const {
    return hn::Sub(hn::Mul(made_up_all(rate), p), hn::Add(g, a));
  }

  T rate;
};
