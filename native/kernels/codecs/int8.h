// int8: symmetric, with a float16 scale for each vector, s = max|x| / 127.
#pragma once

struct Int8 : OneToAnElement<2> {
  using Sum = I;
  static constexpr float kMost = 127.0f;
  static I zero_sum() { return zero_ints(); }
  static Pairs pairs(const uint8_t* code, int) { return widen_int8(code); }

  static void prepare(const uint16_t* q, int row, int head_dim, Queries& queries) {
    prepare_int16(q, row, head_dim, queries);
  }

  template <int R>
  static void score(const Queries& q, int head_dim, const Tiles& tiles, const Tiles& next, float* scores) {
    for (int i = 0; i < kTiles; i++) __builtin_prefetch(next.scales[i], 0, 2);
    score_pairs<Int8, R>(q.x, head_dim, 0, head_dim / 2, tiles, next, 0, [&](int r, int key, I sum) {
      const F scale = load_half((const uint16_t*)tiles.scales[key / kTileTokens] + key % kTileTokens);
      store(scores + r * kKeyTile + key, mul(mul(to_float(sum), set1(q.scale[r])), scale));
    });
  }

  template <int R>
  static void add_values(const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next, float* acc) {
    for (int i = 0; i < kTiles; i++) __builtin_prefetch(next.scales[i], 0, 2);
    alignas(64) uint16_t weights[R * kKeyTile];
    float unit[R];
    const WeightScales scales(tiles, 0);
    for (int r = 0; r < R; r++) unit[r] = weigh(p, r, scales, weights + r * kKeyTile);
    value_all<Int8, R>([&](int r, int, int) { return weights + r * kKeyTile; }, head_dim, tiles, next,
                       [](int, int) { return zero_ints(); },
                       [&](int r, int column, I sum) {
                         float* out = acc + r * head_dim + column;
                         store(out, fma(to_float(sum), set1(unit[r]), mul(load(out), set1(p.decay[r]))));
                       });
  }

  static void encode(const float* x, int head_dim, uint16_t* codes, uint8_t* scales, int slot) {
    alignas(64) float y[kMaxHeadDim];
    const uint16_t scale = round_half(tame(x, head_dim, kMostHalf * kMost, y) / kMost);
    ((uint16_t*)scales)[slot] = scale;
    const F inverse = set1(scale == 0 ? 0.0f : 1.0f / half_to_float(scale)), most = set1(kMost), least = set1(-kMost);
    for (int i = 0; i < head_dim; i += kLanes) store_int16(codes + i, min(max(mul(load(y + i), inverse), least), most));
  }
  static void append_key(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    alignas(64) uint16_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot);
    for (int i = 0; i < head_dim; i++) codes[key_place(i, slot)] = uint8_t(vector[i]);
  }
  static void append_value(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    alignas(64) uint16_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot);
    for (int i = 0; i < head_dim; i++) codes[value_place(i, slot, head_dim)] = uint8_t(vector[i]);
  }
};
