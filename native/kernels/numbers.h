// Number formats of two bytes and of one, one number at a time. Included once per instruction set, before its vec_*.h.
#pragma once

static inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
static inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

static inline uint16_t round_bf16(float x) {
  uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// float16 of a finite number, to nearest even. What would round to infinity must not be asked for.
static inline uint16_t round_half(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Below 2^-14 float16 counts in steps of 2^-24: adding 1/2 leaves their number in the last bits of the sum.
  if (magnitude < 0x38800000u) return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

static inline float half_to_float(uint16_t x) {
  // As if it were a float with a smaller exponent: exact, the subnormal ones included.
  return float_of((uint32_t(x) & 0x7fffu) << 13 | (uint32_t(x) & 0x8000u) << 16) * 5.192296858534828e33f;  // 2^112
}

// e4m3 with exponent 0, in units of 2^-17, as bfloat16: 0 to 7, in two words of four.
constexpr int64_t kFp8Small[2] = {0x37c0378037000000, 0x3860384038203800};

// e4m3 code of a number within +-448, to nearest even.
static inline uint8_t round_fp8(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  // Below 2^-6 e4m3 counts in steps of 2^-9: adding 2^14 leaves their number in the last bits of the sum.
  const uint32_t small = bits_of(float_of(magnitude) + 16384.0f) - bits_of(16384.0f);
  const uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  return uint8_t(sign | (magnitude < 0x3c800000u ? small : normal));
}
