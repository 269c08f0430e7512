// What a KV codec offers, and what all of them are made of. Included once per instruction set.
//
// A codec says how a tile of 16 keys or values is written down (kv/pool.h has the layout) and how it meets 6 rows of
// queries or probabilities. Attention calls it through KeyOps and ValueOps and knows nothing else of it.
#pragma once

constexpr int kTiles = kKeyTile / kTileTokens;

// The keys, or the values, of one key tile: four tiles of codes, and of scales.
struct Tiles {
  const uint8_t* codes[kTiles];
  const uint8_t* scales[kTiles];
};

// Rows of queries as a codec reads them: bf16, or int16 times a scale each.
struct Queries {
  alignas(64) uint16_t x[kRows * kMaxHeadDim];
  float scale[kRows];
  float sums[kRows * kMaxHeadDim / kInt4Group];  // int4: of the elements of each group
};

// Rows of probabilities over one key tile. A row that sees keys [lo, hi) of it has exact zeros elsewhere.
struct Probabilities {
  alignas(64) float p[kRows * kKeyTile];
  float top[kRows];    // the largest of a row; 0 for one that sees none of these keys
  float decay[kRows];  // what the row's sums so far are multiplied by
  int lo[kRows], hi[kRows];
};

struct KeyOps {
  // Query row `row`, from bf16 [head_dim].
  void (*prepare)(const uint16_t* q, int row, int head_dim, Queries& queries);
  // scores [rows, 64] = queries . K^T
  void (*score)(int rows, const Queries& queries, int head_dim, const Tiles& tiles, const Tiles& next, float* scores);
  // Writes one key into slot `slot` of a tile.
  void (*append)(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot);
};

struct ValueOps {
  // acc [rows, head_dim] = acc * decay + p . V
  void (*add)(int rows, const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next, float* acc);
  void (*append)(const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot);
};

static inline void prefetch_tiles(const Tiles& tiles, size_t code_tile, size_t scale_tile) {
  // Into the second-level cache, as all keys and values are fetched: into the first fewer requests can be under way.
  for (int i = 0; i < kTiles; i++) {
    for (size_t b = 0; b < code_tile; b += 64) __builtin_prefetch(tiles.codes[i] + b, 0, 2);
    for (size_t b = 0; b < scale_tile; b += 64) __builtin_prefetch(tiles.scales[i] + b, 0, 2);
  }
}

// visit(R) with R = rows as a number that the compiler knows.
template <int N>
struct Number {
  static constexpr int value = N;
};
template <typename Visit>
static inline __attribute__((always_inline)) void for_rows(int rows, Visit visit) {
  switch (rows) {
    case 1: return visit(Number<1>{});
    case 2: return visit(Number<2>{});
    case 3: return visit(Number<3>{});
    case 4: return visit(Number<4>{});
    case 5:
      if constexpr (kRows >= 5) visit(Number<5>{});
      return;
    case 6:
      if constexpr (kRows >= 6) visit(Number<6>{});
      return;
  }
}

// The sums of R query rows with 64 keys over the pairs of `rows` rows of a tile, from pair kp0 of head_dim and byte
// `offset` of the tile on, kLanes keys at a time: given to finish(r, key, sum). The codec's pairs(code, part) makes a
// vector of pairs from the codes at `code`; a row holds kParts pairs, `rows` pairs apart.
template <typename Codec, int R, typename Finish>
static inline __attribute__((always_inline)) void score_pairs(const uint16_t* q, int head_dim, int kp0, int rows,
                                                              const Tiles& tiles, const Tiles& next, size_t offset,
                                                              Finish finish) {
  constexpr int NV = R == 1 ? kVectorsOneRow : kVectors, kStep = kTileTokens * Codec::kPairBytes;
  for (int c = 0; c < kKeyTile; c += NV * kLanes) {
    const uint8_t *w[NV], *ahead[NV];
    typename Codec::Sum acc[R][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      const int key = c + j * kLanes;
      w[j] = tiles.codes[key / kTileTokens] + offset + key % kTileTokens * Codec::kPairBytes;
      ahead[j] = next.codes[key / kTileTokens] + offset + key % kTileTokens * Codec::kPairBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = Codec::zero_sum();
#pragma GCC unroll 2
    for (int part = 0; part < Codec::kParts; part++)
      accumulate<4 / Codec::kPairBytes>(
          acc, rows, [&](int kp, int j) { return Codec::pairs(w[j] + kp * kStep, part); },
          [&](int kp, int r, int) { return q + r * head_dim + 2 * (kp0 + part * rows + kp); },
          [&](int kp, int j) {
            if (part == 0) __builtin_prefetch(ahead[j] + kp * kStep, 0, 2);
          });
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) finish(r, c + j * kLanes, acc[r][j]);
  }
}

// The sums of R rows of weights with 64 values, for NV vectors of columns from c on: start(r, column) is where a sum
// begins, and finish(r, column, sum) takes it.
template <typename Codec, int R, int NV, typename Input, typename Start, typename Finish>
static inline __attribute__((always_inline)) void value_columns(Input input, int head_dim, const Tiles& tiles,
                                                                const Tiles& next, int c, Start start, Finish finish) {
  typename Codec::Sum acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) acc[r][j] = start(r, c + j * kLanes);
  const size_t step = Codec::row_bytes(head_dim);
  for (int i = 0; i < kTiles; i++) {
    const uint8_t *w[NV], *ahead[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      const size_t column = Codec::column_byte(c + j * kLanes);
      w[j] = tiles.codes[i] + column;
      ahead[j] = next.codes[i] + column;
    }
    accumulate<1>(
        acc, kTileTokens / 2,
        [&](int kp, int j) { return Codec::pairs(w[j] + kp * step, Codec::template part_of<NV>(c, j)); },
        [&](int kp, int r, int j) { return input(r, c, j) + i * kTileTokens + 2 * kp; },
        [&](int kp, int j) {
          if (j * kLanes % Codec::kLineColumns == 0) __builtin_prefetch(ahead[j] + kp * step, 0, 2);
        });
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) finish(r, c + j * kLanes, acc[r][j]);
}

// All columns: as many vectors together as there are registers for, then the rest in steps of 16 columns.
template <typename Codec, int R, typename Input, typename Start, typename Finish>
static inline __attribute__((always_inline)) void value_all(Input input, int head_dim, const Tiles& tiles,
                                                            const Tiles& next, Start start, Finish finish) {
  constexpr int kStep = kTileTokens / kLanes;
  int c = 0;
  for (; c + kVectors * kLanes <= head_dim; c += kVectors * kLanes)
    value_columns<Codec, R, kVectors>(input, head_dim, tiles, next, c, start, finish);
  for (; c < head_dim; c += kStep * kLanes)
    value_columns<Codec, R, kStep>(input, head_dim, tiles, next, c, start, finish);
}

// Codes one to an element, as bf16, int8 and fp8 have them.
template <int PAIR_BYTES>
struct OneToAnElement {
  static constexpr int kPairBytes = PAIR_BYTES, kParts = 1;
  static constexpr int kLineColumns = 64 / PAIR_BYTES;  // columns whose pairs fill a cache line
  static size_t row_bytes(int head_dim) { return size_t(head_dim) * kPairBytes; }
  static size_t column_byte(int column) { return size_t(column) * kPairBytes; }
  template <int NV>
  static int part_of(int, int) {
    return 0;
  }
};

// Where element i of the key, and of the value, in slot `slot` lies within its tile, in elements.
static inline int key_place(int i, int slot) { return (i / 2 * kTileTokens + slot) * 2 + i % 2; }
static inline int value_place(int i, int slot, int head_dim) { return (slot / 2 * head_dim + i) * 2 + slot % 2; }

// x with every NaN as 0 and nothing beyond +-limit; returns the largest magnitude.
static inline float tame(const float* x, int n, float limit, float* out) {
  for (int i = 0; i < n; i++) {
    const float v = x[i] == x[i] ? x[i] : 0.0f;
    out[i] = v < -limit ? -limit : v > limit ? limit : v;
  }
  F top = zero();
  for (int i = 0; i < n; i += kLanes) top = max(top, max(load(out + i), sub(zero(), load(out + i))));
  return reduce_max(top);
}

constexpr float kMostHalf = 65504.0f;
