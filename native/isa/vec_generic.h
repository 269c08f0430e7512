// 4 floats with the compiler's own vectors: any processor, no fused multiply-add, so that every machine that runs
// this path computes the same bits.
#pragma once

constexpr int kLanes = 4;
constexpr int kRows = 4, kVectors = 2, kVectorsOneRow = 4;
typedef float F __attribute__((vector_size(16)));
typedef uint32_t Pairs __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

static inline F zero() { return F{0, 0, 0, 0}; }
static inline F set1(float x) { return F{x, x, x, x}; }
static inline F load(const float* p) {
  F x;
  __builtin_memcpy(&x, p, 16);
  return x;
}
static inline void store(float* p, F x) { __builtin_memcpy(p, &x, 16); }
static inline F add(F a, F b) { return a + b; }
static inline F sub(F a, F b) { return a - b; }
static inline F mul(F a, F b) { return a * b; }
static inline F div(F a, F b) { return a / b; }
static inline F fma(F a, F b, F c) { return a * b + c; }
static inline F select(Ints keep, F a, F b) { return (F)(((Ints)a & keep) | ((Ints)b & ~keep)); }
static inline F max(F a, F b) { return select(a > b, a, b); }
static inline F min(F a, F b) { return select(a < b, a, b); }
// To nearest even by the magic number 1.5 * 2^23, for |x| < 2^22.
static inline F round(F x) { return (x + set1(12582912.0f)) - set1(12582912.0f); }
static inline float reduce_max(F x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
static inline float reduce_add(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }

// x * 2^n for whole n <= 127; 0 for n <= -127.
static inline F scale_by_power(F x, F n) {
  const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  return (F)((Ints)(x * (F)power) & (n > set1(-127.0f)));
}

// Lanes lo <= i < hi keep x, the others become `other`.
static inline F keep_range(F x, int lo, int hi, float other) {
  const Ints lane = {0, 1, 2, 3};
  return select((lane >= lo) & (lane < hi), x, set1(other));
}

static inline Pairs load_pairs(const uint16_t* p) {
  Pairs x;
  __builtin_memcpy(&x, p, 16);
  return x;
}
static inline Pairs set1_pair(const uint16_t* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return Pairs{x, x, x, x};
}
static inline F dot2(F acc, Pairs w, Pairs x) {
  const F low = (F)(w << 16) * (F)(x << 16), high = (F)(w & 0xffff0000u) * (F)(x & 0xffff0000u);
  return (acc + low) + high;
}

// Sums and differences of lanes 1 and 2 apart: a and b become a + b and a - b.
static inline F butterflies(F x) {
  x = F{x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]};
  return F{x[0] + x[2], x[1] + x[3], x[0] - x[2], x[1] - x[3]};
}

// Keys and values in fewer bits, as pairs of int16 or bfloat16.
using I = Ints;
static inline I zero_ints() { return I{0, 0, 0, 0}; }
static inline F to_float(I x) { return __builtin_convertvector(x, F); }
static inline I dot2(I acc, Pairs w, Pairs x) {
  return acc + ((I)(w << 16) >> 16) * ((I)(x << 16) >> 16) + ((I)w >> 16) * ((I)x >> 16);
}
static inline F load_half(const uint16_t* p) {
  return F{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
static inline void store_int16(uint16_t* p, F x) {
  const I whole = __builtin_convertvector(round(x), I);
  for (int i = 0; i < kLanes; i++) p[i] = uint16_t(whole[i]);
}
template <typename Widen>
static inline Pairs widen(const uint8_t* p, Widen widen) {
  Pairs x;
  for (int i = 0; i < kLanes; i++) x[i] = uint32_t(widen(p[2 * i])) | uint32_t(widen(p[2 * i + 1])) << 16;
  return x;
}
static inline Pairs widen_int8(const uint8_t* p) {
  return widen(p, [](uint8_t code) { return uint16_t(int8_t(code)); });
}
static inline Pairs widen_nibbles(const uint8_t* p, int part) {
  return widen(p, [=](uint8_t code) { return uint16_t(code >> (4 * part) & 15); });
}
// bfloat16 of e4m3 codes, times 2^-8: exponents 1 to 15 of e4m3 become 113 to 127 by setting three bits; what has
// exponent 0 is normal in bfloat16 and comes from a table.
static inline Pairs widen_fp8(const uint8_t* p) {
  return widen(p, [](uint8_t code) {
    const int small = code & 7;
    const uint16_t x = code & 0x78 ? uint16_t(0x3800 | (code & 0x7f) << 4)
                                   : uint16_t(uint64_t(kFp8Small[small / 4]) >> (16 * (small % 4)));
    return uint16_t(x | (code & 0x80) << 8);
  });
}

static inline void store_bf16(uint16_t* p, F x) {
  for (int i = 0; i < kLanes; i++) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    p[i] = uint16_t(nan ? (bits >> 16) | 0x40 : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}
