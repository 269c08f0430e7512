// Queries and probabilities as int16, for codes that are whole numbers: products are summed exactly, so their order
// does not matter. 15 bits beside the codes' 8 or 4 lose nothing that counts: bfloat16 has 8.
#pragma once

constexpr float kMostInt16 = 32767.0f;

// One query row as int16 times a scale.
static void prepare_int16(const uint16_t* q, int row, int head_dim, Queries& queries) {
  alignas(64) float x[kMaxHeadDim];
  for (int i = 0; i < head_dim; i++) x[i] = float_of(uint32_t(q[i]) << 16);
  const float top = tame(x, head_dim, 1e30f, x);
  const F inverse = set1(top < 1e-30f ? 0.0f : kMostInt16 / top);
  queries.scale[row] = top < 1e-30f ? 0.0f : top / kMostInt16;
  uint16_t* out = queries.x + row * head_dim;
  for (int i = 0; i < head_dim; i += kLanes) store_int16(out + i, mul(load(x + i), inverse));
}

// The scales [64] of a tile's values as weights take them: over their largest, which a row that sees all keys shares
// with every such row. One that sees some takes the largest of those: what it does not see must not matter.
struct WeightScales {
  alignas(64) float scale[kKeyTile];
  float top;

  explicit WeightScales(const Tiles& tiles, size_t offset) {
    F most = zero();
    for (int key = 0; key < kKeyTile; key += kLanes) {
      const uint16_t* halves = (const uint16_t*)(tiles.scales[key / kTileTokens] + offset) + key % kTileTokens;
      const F s = load_half(halves);
      store(scale + key, s);
      most = max(most, s);
    }
    top = reduce_max(most);
  }

  float top_of(int lo, int hi) const {
    if (lo <= 0 && hi >= kKeyTile) return top;
    F most = zero();
    for (int key = 0; key < kKeyTile; key += kLanes)
      most = max(most, keep_range(load(scale + key), lo - key, hi - key, 0.0f));
    return reduce_max(most);
  }
};

// weights [64] = p * scale as int16; returns what one unit of them is worth.
static inline float weigh(const Probabilities& p, int row, const WeightScales& scales, uint16_t* weights) {
  const float most = p.top[row] * scales.top_of(p.lo[row], p.hi[row]);
  const F factor = set1(most < 1e-30f ? 0.0f : kMostInt16 / most);
  for (int key = 0; key < kKeyTile; key += kLanes) {
    const F w = mul(mul(load(p.p + row * kKeyTile + key), load(scales.scale + key)), factor);
    store_int16(weights + key, min(w, set1(kMostInt16)));
  }
  return most < 1e-30f ? 0.0f : most / kMostInt16;
}
