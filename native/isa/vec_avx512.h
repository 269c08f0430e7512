// 16 floats in a zmm register. OCTAVO_BF16_DOT selects the BF16 dot product (two products per lane and step).
#pragma once

constexpr int kLanes = 16;
using F = __m512;
using Pairs = __m512i;

static inline F zero() { return _mm512_setzero_ps(); }
static inline F set1(float x) { return _mm512_set1_ps(x); }
static inline F load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
static inline F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
static inline float reduce_add(F x) { return _mm512_reduce_add_ps(x); }

// x * 2^n for whole n; 0 for n <= -127.
static inline F scale_by_power(F x, F n) {
  const __mmask16 normal = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-127.0f), _CMP_GT_OQ);
  return _mm512_maskz_scalef_ps(normal, x, n);
}

// Lanes lo <= i < hi keep x, the others become `other`.
static inline F keep_range(F x, int lo, int hi, float other) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 keep =
      _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(lo)) & _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(hi));
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(other), x);
}

// Sums and differences of lanes 1, 2, 4 and 8 apart: a and b become a + b and a - b.
static inline F butterflies(F x) {
  F y = _mm512_permute_ps(x, 0xb1);
  x = _mm512_mask_sub_ps(_mm512_add_ps(x, y), 0xaaaa, y, x);
  y = _mm512_permute_ps(x, 0x4e);
  x = _mm512_mask_sub_ps(_mm512_add_ps(x, y), 0xcccc, y, x);
  y = _mm512_shuffle_f32x4(x, x, 0xb1);
  x = _mm512_mask_sub_ps(_mm512_add_ps(x, y), 0xf0f0, y, x);
  y = _mm512_shuffle_f32x4(x, x, 0x4e);
  return _mm512_mask_sub_ps(_mm512_add_ps(x, y), 0xff00, y, x);
}

// Keys and values in fewer bits, as pairs of int16 or bfloat16.
using I = __m512i;
static inline I zero_ints() { return _mm512_setzero_si512(); }
static inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
static inline F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline void store_int16(uint16_t* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}
static inline Pairs widen_int8(const uint8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
static inline Pairs widen_nibbles(const uint8_t* p, int part) {
  const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p));
  return part ? _mm512_srli_epi16(bytes, 4) : _mm512_and_si512(bytes, _mm512_set1_epi16(15));
}
// bfloat16 of e4m3 codes, times 2^-8: exponents 1 to 15 of e4m3 become 113 to 127 by setting three bits; what has
// exponent 0 is normal in bfloat16 and comes from a table.
static inline Pairs widen_fp8(const uint8_t* p) {
  const __m512i codes = widen_int8(p);
  const __m512i low = _mm512_set1_epi64(kFp8Small[0]), high = _mm512_set1_epi64(kFp8Small[1]);
  const __m512i small = _mm512_unpacklo_epi64(low, high);
  __m512i x = _mm512_ternarylogic_epi32(_mm512_slli_epi16(codes, 4), _mm512_set1_epi16(0x07f0),
                                        _mm512_set1_epi16(0x3800), 0xea);  // (a & b) | c
  x = _mm512_mask_permutexvar_epi16(x, _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x78)), codes, small);
  return _mm512_ternarylogic_epi32(codes, x, _mm512_set1_epi16(int16_t(0x8000)), 0xe4);  // c ? a : b
}

static inline Pairs load_pairs(const uint16_t* p) { return _mm512_loadu_si512(p); }
static inline Pairs set1_pair(const uint16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm512_set1_epi32(pair);
}

#ifdef OCTAVO_BF16_DOT
constexpr int kRows = 6, kVectors = 4, kVectorsOneRow = 4;

static inline F dot2(F acc, Pairs w, Pairs x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }
static inline I dot2(I acc, Pairs w, Pairs x) {
  // _mm512_dpwssd_epi32, around which GCC 12 moves all accumulators from register to register and to memory.
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
  return acc;
}
static inline void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
#else
constexpr int kRows = 6, kVectors = 2, kVectorsOneRow = 4;

static inline F low(Pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
static inline F high(Pairs x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000)))); }
static inline F dot2(F acc, Pairs w, Pairs x) { return fma(high(w), high(x), fma(low(w), low(x), acc)); }
static inline I dot2(I acc, Pairs w, Pairs x) { return _mm512_add_epi32(acc, _mm512_madd_epi16(w, x)); }
static inline void store_bf16(uint16_t* p, F x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
#endif
