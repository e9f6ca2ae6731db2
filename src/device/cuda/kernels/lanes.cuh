// Highway's names for operations on one element, each rounded on its own: what the formulas of
// update rules (src/optim/formulas) call. Nothing is fused, nothing estimated.
#pragma once

#define HWY_INLINE __forceinline__

namespace hn {

template <class T>
struct ScalableTag {};

template <class T>
HWY_INLINE T Set(ScalableTag<T>, T value) { return value; }
template <class T>
HWY_INLINE T Zero(ScalableTag<T>) { return T(0); }

HWY_INLINE float Add(float a, float b) { return __fadd_rn(a, b); }
HWY_INLINE float Sub(float a, float b) { return __fsub_rn(a, b); }
HWY_INLINE float Mul(float a, float b) { return __fmul_rn(a, b); }
HWY_INLINE float Div(float a, float b) { return __fdiv_rn(a, b); }
HWY_INLINE float Sqrt(float a) { return __fsqrt_rn(a); }
HWY_INLINE double Add(double a, double b) { return __dadd_rn(a, b); }
HWY_INLINE double Sub(double a, double b) { return __dsub_rn(a, b); }
HWY_INLINE double Mul(double a, double b) { return __dmul_rn(a, b); }
HWY_INLINE double Div(double a, double b) { return __ddiv_rn(a, b); }
HWY_INLINE double Sqrt(double a) { return __dsqrt_rn(a); }

template <class T>
HWY_INLINE T Neg(T a) { return -a; }
template <class T>
HWY_INLINE bool Gt(T a, T b) { return a > b; }
template <class T>
HWY_INLINE bool Lt(T a, T b) { return a < b; }
template <class T>
HWY_INLINE bool Ne(T a, T b) { return a != b; }
template <class T>
HWY_INLINE T IfThenElse(bool which, T a, T b) { return which ? a : b; }
template <class T>
HWY_INLINE T IfThenElseZero(bool which, T a) { return which ? a : T(0); }
HWY_INLINE float CopySign(float magnitude, float sign) { return copysignf(magnitude, sign); }
HWY_INLINE double CopySign(double magnitude, double sign) { return copysign(magnitude, sign); }

}  // namespace hn

template <class T>
using Lanes = T;
