// 16-bit floats of one element and back, bit for bit as core/float_formats-inl.h does it. Text for
// whoever says what bits_of and float_of are.

struct Brain {  // bfloat16: the upper half of a float32
  using Stored = unsigned short;
  using Wide = float;
  static inline float load(Stored stored) { return float_of(static_cast<unsigned>(stored) << 16); }
  static inline Stored store(float value) {
    const unsigned bits = bits_of(value);
    const unsigned rounded = (bits + ((bits >> 16) & 1U) + 0x7FFFU) >> 16;
    const unsigned quiet = (bits >> 16) | 0x40U;
    return static_cast<Stored>(value != value ? quiet : rounded);
  }
};

struct Ieee {  // float16
  using Stored = unsigned short;
  using Wide = float;
  static inline float load(Stored stored) {
    const unsigned magnitude = stored & 0x7FFFU;
    const unsigned sign = static_cast<unsigned>(stored & 0x8000U) << 16;
    const unsigned rebias = magnitude > 0x7BFFU ? 224U << 23 : 112U << 23;
    const unsigned normal = (magnitude << 13) + rebias;
    // Subnormal numbers are whole multiples of 2^-24.
    const unsigned tiny = bits_of(static_cast<float>(magnitude) * 5.9604644775390625e-08f);
    return float_of(sign | (magnitude < 0x0400U ? tiny : normal));
  }
  static inline Stored store(float value) {
    const unsigned bits = bits_of(value);
    const unsigned sign = (bits >> 16) & 0x8000U;
    const unsigned magnitude = bits & 0x7FFFFFFFU;
    const unsigned rounded = ((magnitude - (112U << 23)) + ((magnitude >> 13) & 1U) + 0xFFFU) >> 13;
    const unsigned tiny = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    unsigned half = magnitude < (113U << 23) ? tiny : rounded;
    half = magnitude > 0x477FEFFFU ? 0x7C00U : half;
    half = value != value ? 0x7E00U | ((magnitude >> 13) & 0x03FFU) : half;
    return static_cast<Stored>(half | sign);
  }
};
