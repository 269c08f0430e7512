// RMSNorm, rotary embedding and the writing of keys and values into tiles. Included once per instruction set.
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
static void rotate(const float* x, const float* cos_sin, int rotary_dim, int head_dim, uint16_t* out) {
  const int half = rotary_dim / 2;
  const float *y = x + half, *cosine = cos_sin, *sine = cos_sin + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F c = load(cosine + i), s = load(sine + i), a = load(x + i), b = load(y + i);
    store_bf16(out + i, sub(mul(a, c), mul(b, s)));
    store_bf16(out + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; i++) {
    out[i] = round_bf16(x[i] * cosine[i] - y[i] * sine[i]);
    out[half + i] = round_bf16(y[i] * cosine[i] + x[i] * sine[i]);
  }
  for (i = rotary_dim; i < head_dim; i++) out[i] = round_bf16(x[i]);
}

static void rotate_into_tile(const float* x, const float* cos_sin, int rotary_dim, int head_dim, uint16_t* tile,
                             int slot) {
  alignas(64) uint16_t rotated[kMaxHeadDim];
  rotate(x, cos_sin, rotary_dim, head_dim, rotated);
  for (int i = 0; i < head_dim; i += 2) __builtin_memcpy(tile + i * kTileTokens + 2 * slot, rotated + i, 4);
}

// Values are stored finite: a masked probability is 0, and 0 times infinity would reach rows that do not see this key.
static void value_into_tile(const float* x, int head_dim, uint16_t* tile, int slot) {
  const F most = set1(3.3895314e38f), least = set1(-3.3895314e38f);  // bfloat16's largest; a NaN becomes the least
  alignas(64) uint16_t rounded[kMaxHeadDim];
  for (int i = 0; i < head_dim; i += kLanes) store_bf16(rounded + i, min(max(load(x + i), least), most));
  uint16_t* row = tile + (slot / 2) * 2 * head_dim + slot % 2;
  for (int i = 0; i < head_dim; i++) row[2 * i] = rounded[i];
}
