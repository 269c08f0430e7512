// bfloat16 in a uint16_t: the upper half of a float, rounded to nearest even.
#pragma once
#include <bit>
#include <cstdint>

namespace octavo {

inline uint16_t to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);  // keep a NaN a NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bf16(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }

}  // namespace octavo
