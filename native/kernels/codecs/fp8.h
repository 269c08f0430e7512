// fp8: e4m3 with a float16 scale for each vector, s = max|x| / 448. Read as bfloat16, exactly.
#pragma once

struct Fp8 : OneToAnElement<2> {
  using Sum = F;
  static constexpr float kMost = 448.0f;
  static constexpr float kGain = 256.0f;  // widen_fp8 gives codes times 2^-8
  static F zero_sum() { return zero(); }
  static Pairs pairs(const uint8_t* code, int) { return widen_fp8(code); }

  static F scales_of(const Tiles& tiles, int key) {
    return mul(load_half((const uint16_t*)tiles.scales[key / kTileTokens] + key % kTileTokens), set1(kGain));
  }

  static void prepare(const uint16_t* q, int row, int head_dim, Queries& queries) {
    Bf16::prepare(q, row, head_dim, queries);
  }

  template <int R>
  static void score(const Queries& q, int head_dim, const Tiles& tiles, const Tiles& next, float* scores) {
    for (int i = 0; i < kTiles; i++) __builtin_prefetch(next.scales[i], 0, 2);
    score_pairs<Fp8, R>(q.x, head_dim, 0, head_dim / 2, tiles, next, 0, [&](int r, int key, F sum) {
      store(scores + r * kKeyTile + key, mul(sum, scales_of(tiles, key)));
    });
  }

  template <int R>
  static void add_values(const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next, float* acc) {
    for (int i = 0; i < kTiles; i++) __builtin_prefetch(next.scales[i], 0, 2);
    alignas(64) uint16_t weights[R * kKeyTile];
    for (int key = 0; key < kKeyTile; key += kLanes) {
      const F scale = scales_of(tiles, key);
      for (int r = 0; r < R; r++) store_bf16(weights + r * kKeyTile + key, mul(load(p.p + r * kKeyTile + key), scale));
    }
    value_all<Fp8, R>([&](int r, int, int) { return weights + r * kKeyTile; }, head_dim, tiles, next,
                      [&](int r, int column) { return mul(load(acc + r * head_dim + column), set1(p.decay[r])); },
                      [&](int r, int column, F sum) { store(acc + r * head_dim + column, sum); });
  }

  static void encode(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    alignas(64) float y[kMaxHeadDim];
    const uint16_t scale = round_half(tame(x, head_dim, kMostHalf * kMost, y) / kMost);
    ((uint16_t*)scales)[slot] = scale;
    // A scale of zero leaves nothing to multiply: all codes are 0, not even a sign stays.
    const float inverse = scale == 0 ? 0.0f : 1.0f / half_to_float(scale);
    for (int i = 0; i < head_dim; i++) {
      const float v = y[i] * inverse;
      codes[i] = scale == 0 ? 0 : round_fp8(v < -kMost ? -kMost : v > kMost ? kMost : v);
    }
  }
  static void append_key(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    uint8_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot);
    for (int i = 0; i < head_dim; i += 2) __builtin_memcpy(codes + key_place(i, slot), vector + i, 2);
  }
  static void append_value(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    uint8_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot);
    for (int i = 0; i < head_dim; i++) codes[value_place(i, slot, head_dim)] = vector[i];
  }
};
