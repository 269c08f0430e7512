// exp2 on vectors and what is made of it, and small loops over rows. Included once per
// instruction set, inside its namespace, after its vec.h.
#pragma once

// 2^x for x up to 126, relative error below 2e-7; exactly 0 from -127 down, -inf included.
// 2^x = 2^n * 2^f with n = round(x), |f| <= 1/2, and the Taylor polynomial of degree 6 for 2^f.
static inline F exp2_of(F x) {
  x = max(x, set1(-127.0f));
  F n = round(x);
  F f = sub(x, n);
  F p = set1(1.5403530e-4f);
  p = fma(p, f, set1(1.3333558e-3f));
  p = fma(p, f, set1(9.6181291e-3f));
  p = fma(p, f, set1(5.5504109e-2f));
  p = fma(p, f, set1(2.4022651e-1f));
  p = fma(p, f, set1(6.9314718e-1f));
  p = fma(p, f, set1(1.0f));
  return scale_by_power(p, n);
}

constexpr float kLog2e = 1.4426950408889634f;

// x / (1 + 2^-y): with y = x log2(e) it is silu. 2^-y is clamped so that it stays finite.
static inline F gate_by_sigmoid(F x, F minus_y) { return div(x, add(set1(1.0f), exp2_of(min(minus_y, set1(126.0f))))); }

static inline F silu(F x) { return gate_by_sigmoid(x, mul(x, set1(-kLog2e))); }

// x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u) (Hendrycks and Gimpel 2016).
static inline F gelu_tanh(F x) {
  constexpr float kFactor = -2.0f * 0.7978845608028654f * kLog2e;
  const F cubic = fma(mul(mul(x, x), set1(0.044715f * kFactor)), x, mul(x, set1(kFactor)));
  return gate_by_sigmoid(x, cubic);
}

// tanh(x) = 1 - 2 / (1 + e^2x), good to 2e-7 of 1.
static inline F tanh_of(F x) {
  const F e = exp2_of(min(mul(x, set1(2 * kLog2e)), set1(126.0f)));
  return sub(set1(1.0f), div(set1(2.0f), add(set1(1.0f), e)));
}

static inline float exp2_of(float x) {
  float lanes[kLanes];
  store(lanes, exp2_of(set1(x)));
  return lanes[0];
}

// A NaN is passed over, wherever it stands: max returns its second operand if either is one.
static float row_max(const float* x, int n) {
  F best = set1(-__builtin_inff());
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) best = max(load(x + i), best);
  float result = reduce_max(best);
  for (; i < n; i++) result = x[i] > result ? x[i] : result;
  return result;
}

static void exp_into(const float* x, int n, float max, float scale, float* out) {
  const float factor = scale * kLog2e;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, exp2_of(mul(sub(load(x + i), set1(max)), set1(factor))));
  for (; i < n; i++) out[i] = exp2_of((x[i] - max) * factor);
}

static float sum_exp(const float* x, int n, float max, float scale) {
  const float factor = scale * kLog2e;
  // Chunks keep the running sums small beside the total: 49,152 equal terms in one float lose six digits.
  double total = 0;
  int i = 0;
  while (i + kLanes <= n) {
    F sum = zero();
    for (int end = i + 64 * kLanes; i + kLanes <= n && i < end; i += kLanes)
      sum = add(sum, exp2_of(mul(sub(load(x + i), set1(max)), set1(factor))));
    total += double(reduce_add(sum));
  }
  for (; i < n; i++) total += double(exp2_of((x[i] - max) * factor));
  return float(total);
}

// Arithmetic as fast as it goes, on registers alone: 4 floating-point operations per lane, chain and round.
constexpr int kBurstChains = 12;
static float burst(long rounds) {
  const uint16_t one[2] = {0x3f80, 0x3f80};
  const Pairs x = set1_pair(one);
  F acc[kBurstChains];
  for (int i = 0; i < kBurstChains; i++) acc[i] = zero();
  for (long r = 0; r < rounds; r++) {
#pragma GCC unroll 12
    for (int i = 0; i < kBurstChains; i++) acc[i] = dot2(acc[i], x, x);
  }
  F sum = zero();
  for (int i = 0; i < kBurstChains; i++) sum = add(sum, acc[i]);
  return reduce_add(sum);
}

// Reads every byte of a 64-byte aligned range once.
static float read_all(const float* data, size_t floats) {
  F a = zero(), b = zero(), c = zero(), d = zero();
  for (size_t i = 0; i + 4 * kLanes <= floats; i += 4 * kLanes) {
    a = max(a, load(data + i));
    b = max(b, load(data + i + kLanes));
    c = max(c, load(data + i + 2 * kLanes));
    d = max(d, load(data + i + 3 * kLanes));
  }
  return reduce_max(max(max(a, b), max(c, d)));
}
