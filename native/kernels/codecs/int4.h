// int4: asymmetric, x ~ minimum + s * code with a float16 scale and a float16 minimum for 32 elements of each vector.
//
// Elements j and j + 16 of a group share a byte. As keys the byte holds the same element of two pairs, as values the
// same pair of tokens of two columns. The tile of scales is [head_dim / 32][scale, minimum][16].
#pragma once

struct Int4 {
  using Sum = I;
  static constexpr int kPairBytes = 2, kParts = 2, kLineColumns = 64;
  static constexpr int kGroupScales = 2 * kTileTokens * sizeof(uint16_t);  // bytes of one group's scales and minima
  static constexpr int kHalf = kInt4Group / 2;
  static constexpr int kRanges = 9, kLaneRanges = 16;  // ranges to choose from; as many as fill a vector
  static constexpr float kCuts[] = {0.0f, 0.03f, 0.07f};
  static I zero_sum() { return zero_ints(); }
  static Pairs pairs(const uint8_t* code, int part) { return widen_nibbles(code, part); }

  static size_t row_bytes(int head_dim) { return size_t(head_dim / 2) * kPairBytes; }
  static size_t column_byte(int column) { return size_t(column / kInt4Group * kHalf + column % kHalf) * kPairBytes; }
  template <int NV>
  static int part_of(int c, int j) {
    // NV vectors that fill whole groups begin with one, which lets the compiler know the part.
    const int within = (NV * kLanes % kInt4Group == 0 ? 0 : c) + j * kLanes;
    return within % kInt4Group / kHalf;
  }

  static F halves(const Tiles& tiles, int key, int group, int which) {
    const uint8_t* row = tiles.scales[key / kTileTokens] + group * kGroupScales;
    return load_half((const uint16_t*)row + which * kTileTokens + key % kTileTokens);
  }
  static void prefetch_scales(const Tiles& next, int head_dim) {
    for (int i = 0; i < kTiles; i++)
      for (int g = 0; g < head_dim / kInt4Group; g++) __builtin_prefetch(next.scales[i] + g * kGroupScales, 0, 2);
  }

  static void prepare(const uint16_t* q, int row, int head_dim, Queries& queries) {
    prepare_int16(q, row, head_dim, queries);
    const int groups = head_dim / kInt4Group;
    for (int g = 0; g < groups; g++) {
      int sum = 0;
      for (int i = 0; i < kInt4Group; i++) sum += int16_t(queries.x[row * head_dim + g * kInt4Group + i]);
      queries.sums[row * groups + g] = float(sum);
    }
  }

  // q . k over a group is s (q . code) + minimum (sum of q).
  template <int R>
  static void score(const Queries& q, int head_dim, const Tiles& tiles, const Tiles& next, float* scores) {
    prefetch_scales(next, head_dim);
    const int groups = head_dim / kInt4Group;
    constexpr int kGroupBytes = kHalf / 2 * kTileTokens * kPairBytes;
    for (int g = 0; g < groups; g++) {
      F scales[kKeyTile / kLanes], minima[kKeyTile / kLanes];
      for (int i = 0; i < kKeyTile / kLanes; i++) {
        scales[i] = halves(tiles, i * kLanes, g, 0);
        minima[i] = halves(tiles, i * kLanes, g, 1);
      }
      score_pairs<Int4, R>(q.x, head_dim, g * kHalf, kHalf / 2, tiles, next, size_t(g) * kGroupBytes,
                           [&](int r, int key, I sum) {
                             float* out = scores + r * kKeyTile + key;
                             const F fixed = mul(minima[key / kLanes], set1(q.sums[r * groups + g]));
                             const F total = fma(to_float(sum), scales[key / kLanes], fixed);
                             const F so_far = mul(total, set1(q.scale[r]));
                             store(out, g == 0 ? so_far : add(load(out), so_far));
                           });
    }
  }

  template <int R>
  static void add_values(const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next, float* acc) {
    prefetch_scales(next, head_dim);
    constexpr int kMostGroups = kMaxHeadDim / kInt4Group;
    alignas(64) uint16_t weights[kMostGroups][R * kKeyTile];
    float unit[kMostGroups][R], base[kMostGroups][R];
    for (int g = 0; g < head_dim / kInt4Group; g++) {
      const WeightScales scales(tiles, size_t(g) * kGroupScales);
      for (int r = 0; r < R; r++) {
        unit[g][r] = weigh(p, r, scales, weights[g] + r * kKeyTile);
        F sum = zero();
        for (int key = 0; key < kKeyTile; key += kLanes)
          sum = fma(load(p.p + r * kKeyTile + key), halves(tiles, key, g, 1), sum);
        base[g][r] = reduce_add(sum);
      }
    }
    value_all<Int4, R>([&](int r, int c, int j) { return weights[(c + j * kLanes) / kInt4Group] + r * kKeyTile; },
                       head_dim, tiles, next, [](int, int) { return zero_ints(); },
                       [&](int r, int column, I sum) {
                         float* out = acc + r * head_dim + column;
                         const int g = column / kInt4Group;
                         const F before = fma(load(out), set1(p.decay[r]), set1(base[g][r]));
                         store(out, fma(to_float(sum), set1(unit[g][r]), before));
                       });
  }

  // The minimum and the scale of a group of a key between `low` and `high`: of some ranges that leave out a little at
  // either end, or nothing, the one with the least squared error, the first of equals. Errors are summed element by
  // element, a range in each lane, so that every instruction set chooses alike.
  static void choose(const float* group, float low, float high, uint16_t& minimum, uint16_t& scale) {
    alignas(64) float bases[kLaneRanges], steps[kLaneRanges], inverses[kLaneRanges], errors[kLaneRanges];
    uint16_t minima[kRanges], scales[kRanges];
    const float width = high - low;
    for (int i = 0; i < kRanges; i++) {
      minima[i] = i % 3 == 0 ? round_half(low + width * kCuts[i / 3]) : minima[i - 1];
      bases[i] = half_to_float(minima[i]);
      const float rest = high - width * kCuts[i % 3] - bases[i];
      scales[i] = round_half((rest > 0 ? rest : 0.0f) / 15.0f);
      steps[i] = half_to_float(scales[i]);
      inverses[i] = scales[i] == 0 ? 0.0f : 1.0f / steps[i];
    }
    for (int i = kRanges; i < kLaneRanges; i++) bases[i] = steps[i] = inverses[i] = 0.0f;
    for (int i = 0; i < kLaneRanges; i += kLanes) {
      const F base = load(bases + i), step = load(steps + i), inverse = load(inverses + i);
      F error = zero();
      for (int j = 0; j < kInt4Group; j++) {
        const F x = set1(group[j]);
        const F code = round(min(max(mul(sub(x, base), inverse), zero()), set1(15.0f)));
        const F off = sub(add(mul(code, step), base), x);
        error = add(error, mul(off, off));
      }
      store(errors + i, error);
    }
    int best = 0;
    for (int i = 1; i < kRanges; i++)
      if (errors[i] < errors[best]) best = i;
    minimum = minima[best];
    scale = scales[best];
  }

  // The codes [head_dim], and the scales and minima in their tile.
  static void encode(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot, bool is_key) {
    alignas(64) float y[kMaxHeadDim];
    tame(x, head_dim, kMostHalf, y);
    for (int g = 0; g < head_dim / kInt4Group; g++) {
      const float* group = y + g * kInt4Group;
      F least = load(group), most = least;
      for (int i = kLanes; i < kInt4Group; i += kLanes) {
        least = min(least, load(group + i));
        most = max(most, load(group + i));
      }
      const float low = 0.0f - reduce_max(sub(zero(), least));  // never -0
      const float high = reduce_max(most) + 0.0f;
      uint16_t minimum = round_half(low), scale = round_half((high - low) / 15.0f);
      if (is_key) choose(group, low, high, minimum, scale);
      uint16_t* place = (uint16_t*)(scales + g * kGroupScales) + slot;
      place[0] = scale;
      place[kTileTokens] = minimum;
      const F inverse = set1(scale == 0 ? 0.0f : 1.0f / half_to_float(scale)), base = set1(half_to_float(minimum));
      alignas(64) uint16_t whole[kInt4Group];
      for (int i = 0; i < kInt4Group; i += kLanes)
        store_int16(whole + i, min(max(mul(sub(load(group + i), base), inverse), zero()), set1(15.0f)));
      for (int i = 0; i < kInt4Group; i++) codes[g * kInt4Group + i] = uint8_t(whole[i]);
    }
  }
  static void append_key(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    uint8_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot, true);
    for (int g = 0; g < head_dim / kInt4Group; g++)
      for (int j = 0; j < kHalf; j++)
        codes[key_place(g * kHalf + j, slot)] =
            uint8_t(vector[g * kInt4Group + j] | vector[g * kInt4Group + kHalf + j] << 4);
  }
  static void append_value(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
    uint8_t vector[kMaxHeadDim];
    encode(x, head_dim, vector, scales, slot, false);
    for (int g = 0; g < head_dim / kInt4Group; g++)
      for (int j = 0; j < kHalf; j++)
        codes[value_place(g * kHalf + j, slot, head_dim / 2)] =
            uint8_t(vector[g * kInt4Group + j] | vector[g * kInt4Group + kHalf + j] << 4);
  }
};
