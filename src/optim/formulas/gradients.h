// Gradients as the rules take them. Like all formulas, text for whoever says what `hn` and `Lanes`
// are: Highway's vectors on the host (optim/gradients-inl.h), one element per thread on a GPU. So
// no includes, no namespace, no guard; constructors are templates, called on the host alone.

// A constant in every lane. Rules keep their constants as scalars, because vectors of machines with
// lengths known only at run time cannot be members; the compiler moves this out of the loops.
template <class T>
HWY_INLINE Lanes<T> all(T value) {
  return hn::Set(hn::ScalableTag<T>(), value);
}

// Prepares gradients: the transform, then weight decay and L1, skipping what does nothing so that
// the common case costs nothing. The flags are constants of the whole pass.
template <class T>
class Gradients {
 public:
  template <class Transform>  // GradientTransform, which other compilers have not read
  Gradients(const Transform& transform, double weight_decay, double l1)
      : divisor_(static_cast<T>(transform.divisor)),
        factor_(static_cast<T>(transform.unscale * transform.clip_factor)),
        bound_(static_cast<T>(transform.clip_value)),
        decay_(static_cast<T>(weight_decay)),
        l1_(static_cast<T>(l1)),
        divides_(transform.divisor != 1),
        scales_(transform.unscale * transform.clip_factor != 1),
        bounds_(transform.clip_value > 0),
        decays_(weight_decay != 0),
        l1_used_(l1 != 0) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> gradient, Lanes<T> parameter) const {
    if (divides_) {
      gradient = hn::Div(gradient, all(divisor_));
    }
    if (scales_) {
      gradient = hn::Mul(gradient, all(factor_));
    }
    if (bounds_) {
      // Masks, not Min and Max: a NaN must stay one on every machine.
      gradient = hn::IfThenElse(hn::Gt(gradient, all(bound_)), all(bound_), gradient);
      gradient =
          hn::IfThenElse(hn::Lt(gradient, hn::Neg(all(bound_))), hn::Neg(all(bound_)), gradient);
    }
    if (decays_) {
      gradient = hn::Add(gradient, hn::Mul(all(decay_), parameter));
    }
    if (l1_used_) {
      gradient = hn::Add(gradient, hn::Mul(all(l1_), sign(parameter)));
    }
    return gradient;
  }

  // -1, 0 or 1.
  static HWY_INLINE Lanes<T> sign(Lanes<T> value) {
    const hn::ScalableTag<T> d;
    const auto magnitude = hn::IfThenElseZero(hn::Ne(value, hn::Zero(d)), hn::Set(d, T{1}));
    return hn::CopySign(magnitude, value);
  }

 private:
  T divisor_, factor_, bound_, decay_, l1_;
  bool divides_, scales_, bounds_, decays_, l1_used_;
};

// What a moving average with factor beta becomes with a new value.
template <class T>
struct Moving {
  explicit Moving(double beta) : kept(static_cast<T>(beta)), taken(static_cast<T>(1 - beta)) {}
  HWY_INLINE Lanes<T> operator()(Lanes<T> average, Lanes<T> value) const {
    return hn::Add(hn::Mul(all(kept), average), hn::Mul(all(taken), value));
  }
  T kept, taken;
};
