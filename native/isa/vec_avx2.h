// 8 floats in a ymm register, with fused multiply-add.
#pragma once

constexpr int kLanes = 8;
constexpr int kRows = 4, kVectors = 2, kVectorsOneRow = 4;
using F = __m256;
using Pairs = __m256i;

static inline F zero() { return _mm256_setzero_ps(); }
static inline F set1(float x) { return _mm256_set1_ps(x); }
static inline F load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
static inline F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static inline float reduce_max(F x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline float reduce_add(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// x * 2^n for whole n <= 127; 0 for n <= -127.
static inline F scale_by_power(F x, F n) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const F scaled = _mm256_mul_ps(x, _mm256_castsi256_ps(power));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(n, _mm256_set1_ps(-127.0f), _CMP_GT_OQ));
}

// Lanes lo <= i < hi keep x, the others become `other`.
static inline F keep_range(F x, int lo, int hi, float other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i keep = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1)),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
  return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(keep));
}

static inline Pairs load_pairs(const uint16_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline Pairs set1_pair(const uint16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm256_set1_epi32(pair);
}
static inline F low(Pairs x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
static inline F high(Pairs x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000)))); }
static inline F dot2(F acc, Pairs w, Pairs x) { return fma(high(w), high(x), fma(low(w), low(x), acc)); }

// Sums and differences of lanes 1, 2 and 4 apart: a and b become a + b and a - b.
static inline F butterflies(F x) {
  F y = _mm256_permute_ps(x, 0xb1);
  x = _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xaa);
  y = _mm256_permute_ps(x, 0x4e);
  x = _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xcc);
  y = _mm256_permute2f128_ps(x, x, 1);
  return _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xf0);
}

// Keys and values in fewer bits, as pairs of int16 or bfloat16.
using I = __m256i;
static inline I zero_ints() { return _mm256_setzero_si256(); }
static inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
static inline I dot2(I acc, Pairs w, Pairs x) { return _mm256_add_epi32(acc, _mm256_madd_epi16(w, x)); }
static inline F load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline void store_int16(uint16_t* p, F x) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole, whole), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
static inline Pairs widen_int8(const uint8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
static inline Pairs widen_nibbles(const uint8_t* p, int part) {
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  return _mm256_and_si256(_mm256_srli_epi16(bytes, 4 * part), _mm256_set1_epi16(15));
}
// bfloat16 of e4m3 codes, times 2^-8: exponents 1 to 15 of e4m3 become 113 to 127 by setting three bits; what has
// exponent 0 is normal in bfloat16 and comes from a table.
static inline Pairs widen_fp8(const uint8_t* p) {
  const __m256i codes = widen_int8(p);
  const __m256i table = _mm256_setr_epi64x(kFp8Small[0], kFp8Small[1], kFp8Small[0], kFp8Small[1]);
  const __m256i normal = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi16(0x07f0)),
                                         _mm256_set1_epi16(0x3800));
  // Word m of the table is its bytes 2m and 2m + 1.
  const __m256i bytes =
      _mm256_add_epi16(_mm256_mullo_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(7)), _mm256_set1_epi16(0x0202)),
                       _mm256_set1_epi16(0x0100));
  const __m256i is_small = _mm256_cmpeq_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x78)), _mm256_setzero_si256());
  const __m256i x = _mm256_blendv_epi8(normal, _mm256_shuffle_epi8(table, bytes), is_small);
  return _mm256_or_si256(x, _mm256_and_si256(codes, _mm256_set1_epi16(int16_t(0x8000))));
}

static inline void store_bf16(uint16_t* p, F x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
