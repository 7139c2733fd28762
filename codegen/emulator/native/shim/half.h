// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point types as far as kernels that compute in float need them: storage, conversion and
// comparison, in plain C++ so that any g++ has them.
#pragma once

namespace coldforge_emulator {

// Rounds a float to 16 bits, to nearest, ties to even.
inline unsigned short half_bits(float value) {
  const unsigned bits = bits_as<unsigned>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<unsigned short>(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // a multiple of 2**-24, or zero: adding 0.5 rounds there
    const float shifted = bits_as<float>(magnitude) + 0.5f;
    return static_cast<unsigned short>(sign | (bits_as<unsigned>(shifted) - 0x3f000000u));
  }
  const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<unsigned short>(sign | (rounded - 0x38000000u) >> 13);
}

inline float half_value(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return bits_as<float>(sign | ((magnitude << 13) + 0x38000000u));
}

inline unsigned short bfloat_bits(float value) {
  const unsigned bits = bits_as<unsigned>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40u);
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat_value(unsigned short bits) { return bits_as<float>(static_cast<unsigned>(bits) << 16); }

// A double as a float that rounds to 16 bits as the double does: where it is none exactly, its last bit is
// set.
inline float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double off = value - static_cast<double>(nearest);
  unsigned bits = bits_as<unsigned>(nearest);
  if (!(off < 0.0 || off > 0.0) || nearest - nearest != 0.0f || (bits & 1u) != 0) return nearest;
  // An even last bit: the odd neighbour on the value's side.
  const bool away = (off > 0.0) == (value > 0.0);
  return bits_as<float>(away ? bits + 1u : bits - 1u);
}

// Arithmetic is that of float, rounded once.
template <class Type, unsigned short (*BITS)(float), float (*VALUE)(unsigned short)>
struct Short {
  unsigned short bits;

  Short() = default;
  Short(float value) : bits(BITS(value)) {}
  Short(double value) : bits(BITS(rounded_to_odd(value))) {}
  Short(int value) : Short(static_cast<double>(value)) {}
  operator float() const { return VALUE(bits); }

  friend Type operator+(Type a, Type b) { return Type(VALUE(a.bits) + VALUE(b.bits)); }
  friend Type operator-(Type a, Type b) { return Type(VALUE(a.bits) - VALUE(b.bits)); }
  friend Type operator*(Type a, Type b) { return Type(VALUE(a.bits) * VALUE(b.bits)); }
  friend Type operator/(Type a, Type b) { return Type(VALUE(a.bits) / VALUE(b.bits)); }
  friend bool operator==(Type a, Type b) { return VALUE(a.bits) == VALUE(b.bits); }
  friend bool operator!=(Type a, Type b) { return VALUE(a.bits) != VALUE(b.bits); }
  friend bool operator<(Type a, Type b) { return VALUE(a.bits) < VALUE(b.bits); }
  friend bool operator>(Type a, Type b) { return VALUE(a.bits) > VALUE(b.bits); }
};

}  // namespace coldforge_emulator
