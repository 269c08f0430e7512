// RMSNorm, rotary embedding and the writing of keys and values into tiles. Included once per instruction set.
#pragma once

static void rmsnorm(const float* x, const float* weight, uint16_t* out, int hidden, int stride, float eps) {
  F squares = zero();
  for (int i = 0; i < stride; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const float scale = 1.0f / __builtin_sqrtf(reduce_add(squares) / float(hidden) + eps);
  for (int i = 0; i < stride; i += kLanes) store_bf16(out + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
}

// cos_sin holds head_dim / 2 cosines, then as many sines. Element i turns with element i + head_dim / 2.
static void rotate(const float* x, const float* cos_sin, int head_dim, uint16_t* out) {
  const int half = head_dim / 2;
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
}

static void rotate_into_tile(const float* x, const float* cos_sin, int head_dim, uint16_t* tile, int slot) {
  alignas(64) uint16_t rotated[kMaxHeadDim];
  rotate(x, cos_sin, head_dim, rotated);
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
