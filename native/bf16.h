// bfloat16 in a uint16_t: the upper half of a float. Rounding to it is the kernels' work.
#pragma once
#include <bit>
#include <cstdint>

namespace octavo {

inline float from_bf16(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }

}  // namespace octavo
