// RMSNorm, rotary embedding and what else works on one row. Included once per instruction set.
#pragma once

static inline float inverse_rms(const float* x, int size, int stride, float eps) {
  F squares = zero();
  for (int i = 0; i < stride; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / __builtin_sqrtf(reduce_add(squares) / float(size) + eps);
}

static void rmsnorm(const float* x, const float* weight, uint16_t* out, int size, int stride, float eps) {
  const F scale = set1(inverse_rms(x, size, stride, eps));
  for (int i = 0; i < stride; i += kLanes) store_bf16(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

static void rmsnorm_inplace(float* x, const float* weight, int size, int stride, float eps) {
  const F scale = set1(inverse_rms(x, size, stride, eps));
  for (int i = 0; i < stride; i += kLanes) store(x + i, mul(mul(load(x + i), scale), load(weight + i)));
}

static void rmsnorm_add(const float* x, const float* weight, float* out, int size, int stride, float eps,
                        float factor) {
  const F scale = set1(inverse_rms(x, size, stride, eps));
  for (int i = 0; i < stride; i += kLanes)
    store(out + i, add(load(out + i), mul(mul(mul(load(x + i), scale), load(weight + i)), set1(factor))));
}

static void narrow(const float* x, uint16_t* out, int n) {
  for (int i = 0; i < n; i += kLanes) store_bf16(out + i, load(x + i));
}

static void squash(float* x, int n, float scale, float cap) {
  const auto squashed = [&](F v) {
    v = mul(v, set1(scale));
    return cap == 0 ? v : mul(tanh_of(div(v, set1(cap))), set1(cap));
  };
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, squashed(load(x + i)));
  float rest[kLanes];
  for (int j = i; j < n; j++) {
    store(rest, squashed(set1(x[j])));
    x[j] = rest[0];
  }
}

// cos_sin holds rotary_dim / 2 cosines, then as many sines. Element i turns with element i + rotary_dim / 2.
static void rotate(float* x, const float* cos_sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  float* y = x + half;
  const float *cosine = cos_sin, *sine = cos_sin + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F c = load(cosine + i), s = load(sine + i), a = load(x + i), b = load(y + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(y + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = y[i];
    x[i] = a * cosine[i] - b * sine[i];
    y[i] = b * cosine[i] + a * sine[i];
  }
}

// Sums and differences of elements 1, 2, 4, ... apart, then all over the root of their number.
static void hadamard(float* x, int n) {
  const int block = n & -n;  // a multiple of 16, as n is
  for (int i = 0; i < n; i += kLanes) store(x + i, butterflies(load(x + i)));
  for (int step = kLanes; step < block; step *= 2)
    for (int i = 0; i < n; i += 2 * step)
      for (int j = i; j < i + step; j += kLanes) {
        const F a = load(x + j), b = load(x + j + step);
        store(x + j, add(a, b));
        store(x + j + step, sub(a, b));
      }
  const F scale = set1(1.0f / __builtin_sqrtf(float(block)));
  for (int i = 0; i < n; i += kLanes) store(x + i, mul(load(x + i), scale));
}
