// Paged attention: one recurrence for every row, whether it is prefill or decode. Included once per instruction set.
//
// Keys are taken in tiles of 64, aligned to absolute position 0; (max, sum, acc) starts afresh every 256 absolute
// positions (a split) and splits are merged left to right. Which tiles and splits exist for a row depends on its own
// position and window only. Rows share a pass over the keys but never an accumulator, so a row's result does not
// depend on its company. After FlashAttention-2 (Dao 2023) and PagedAttention (Kwon et al. 2023).
#pragma once

struct TilePointers {
  const uint16_t* k[kKeyTile / kTileTokens];
  const uint16_t* v[kKeyTile / kTileTokens];
};

// First and last position that row sees.
static inline int first_key(const Attention& a, int position) {
  return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

// Tiles beyond `last` are not in the block table; they stand in as the tile of `last`, and are masked.
static inline TilePointers locate(const Attention& a, int tile_start, int last) {
  TilePointers tiles;
  const size_t tile_bytes = size_t(2) * kTileTokens * a.head_dim;
  for (int i = 0; i < kKeyTile / kTileTokens; i++) {
    const int position = tile_start + i * kTileTokens <= last ? tile_start + i * kTileTokens : last;
    const uint8_t* block = a.pool + size_t(a.block_table[position / a.block_size]) * a.block_bytes;
    const size_t within = size_t(position % a.block_size / kTileTokens) * tile_bytes;
    tiles.k[i] = (const uint16_t*)(block + a.k_offset + within);
    tiles.v[i] = (const uint16_t*)(block + a.v_offset + within);
  }
  return tiles;
}

// Into the second-level cache, as all keys and values are fetched: into the first fewer requests can be under way.
static inline void prefetch_tile(const Attention& a, const TilePointers& tiles) {
  const int bytes = 2 * kTileTokens * a.head_dim;
  for (int i = 0; i < kKeyTile / kTileTokens; i++)
    for (int b = 0; b < bytes; b += 64) {
      __builtin_prefetch((const char*)tiles.k[i] + b, 0, 2);
      __builtin_prefetch((const char*)tiles.v[i] + b, 0, 2);
    }
}

// scores [R, 64] = q [R, head_dim] . K^T
template <int R>
static inline void score_tile(const uint16_t* q, int head_dim, const TilePointers& tiles, const TilePointers& next,
                              float* scores) {
  constexpr int NV = R == 1 ? kVectorsOneRow : kVectors;
  for (int c = 0; c < kKeyTile; c += NV * kLanes) {
    const uint16_t *w[NV], *ahead[NV];
    F acc[R][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      const int token = c + j * kLanes;
      w[j] = tiles.k[token / kTileTokens] + 2 * (token % kTileTokens);
      ahead[j] = next.k[token / kTileTokens] + 2 * (token % kTileTokens);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = zero();
    accumulate<R, NV>(acc, q, head_dim, head_dim / 2, w, 2 * kTileTokens,
                      [&](int kp, int j) { __builtin_prefetch(ahead[j] + kp * 2 * kTileTokens, 0, 2); });
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) store(scores + r * kKeyTile + c + j * kLanes, acc[r][j]);
  }
}

// acc [R, NV vectors from column c] = acc * decay + p [R, 64] . V
template <int R, int NV>
static inline void value_columns(const uint16_t* p, int head_dim, const TilePointers& tiles, const TilePointers& next,
                                 const float* decay, int c, float* out) {
  F acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) acc[r][j] = mul(load(out + r * head_dim + c + j * kLanes), set1(decay[r]));
  for (int i = 0; i < kKeyTile / kTileTokens; i++) {
    const uint16_t *w[NV], *ahead[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      w[j] = tiles.v[i] + 2 * (c + j * kLanes);
      ahead[j] = next.v[i] + 2 * (c + j * kLanes);
    }
    accumulate<R, NV>(acc, p + i * kTileTokens, kKeyTile, kTileTokens / 2, w, 2 * head_dim,
                      [&](int kp, int j) { __builtin_prefetch(ahead[j] + kp * 2 * head_dim, 0, 2); });
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) store(out + r * head_dim + c + j * kLanes, acc[r][j]);
}

template <int R>
static inline void value_tile(const uint16_t* p, int head_dim, const TilePointers& tiles, const TilePointers& next,
                              const float* decay, float* out) {
  constexpr int kStep = kTileTokens / kLanes;  // head_dim is a multiple of 16, so columns come in such steps
  int c = 0;
  for (; c + kVectors * kLanes <= head_dim; c += kVectors * kLanes)
    value_columns<R, kVectors>(p, head_dim, tiles, next, decay, c, out);
  for (; c < head_dim; c += kStep * kLanes) value_columns<R, kStep>(p, head_dim, tiles, next, decay, c, out);
}

// One row's 64 scores become probabilities against its new maximum; returns the factor for what was summed before.
// Masked probabilities are exactly zero.
static inline float soften(const Attention& a, const float* scores, int lo, int hi, RowState& state, F& sum,
                           uint16_t* p) {
  constexpr int kCount = kKeyTile / kLanes;
  const bool whole = lo <= 0 && hi >= kKeyTile;
  F t[kCount];
  F top = set1(-__builtin_inff());
#pragma GCC unroll 16
  for (int j = 0; j < kCount; j++) {
    t[j] = mul(load(scores + j * kLanes), set1(a.score_scale));
    if (a.softcap_log2 != 0) t[j] = mul(tanh_of(t[j]), set1(a.softcap_log2));
    if (!whole) t[j] = keep_range(t[j], lo - j * kLanes, hi - j * kLanes, -__builtin_inff());
    top = max(top, t[j]);
  }
  const float tile_max = reduce_max(top);
  const float new_max = tile_max > state.max ? tile_max : state.max;
  const float decay = new_max == state.max ? 1.0f : exp2_of(state.max - new_max);
  F tile_sum = zero();
#pragma GCC unroll 16
  for (int j = 0; j < kCount; j++) {
    t[j] = exp2_of(sub(t[j], set1(new_max)));
    tile_sum = add(tile_sum, t[j]);
    store_bf16(p + j * kLanes, t[j]);
  }
  sum = fma(sum, set1(decay), tile_sum);
  state.max = new_max;
  return decay;
}

template <int R>
static void tile_step(const Attention& a, const uint16_t* q, int tile_start, const int* first, const int* last,
                      const TilePointers& tiles, const TilePointers& next, RowState* state, F* sums, float* acc) {
  alignas(64) float scores[R * kKeyTile];
  alignas(64) uint16_t p[R * kKeyTile];
  float decay[R];
  score_tile<R>(q, a.head_dim, tiles, next, scores);
  for (int r = 0; r < R; r++) {
    const int lo = first[r] - tile_start, hi = last[r] + 1 - tile_start;
    if (hi <= 0 || lo >= kKeyTile) {  // this row sees none of these keys: its state stays as it is
      decay[r] = 1.0f;
      for (int j = 0; j < kKeyTile; j++) p[r * kKeyTile + j] = 0;
    } else {
      decay[r] = soften(a, scores + r * kKeyTile, lo, hi, state[r], sums[r], p + r * kKeyTile);
    }
  }
  value_tile<R>(p, a.head_dim, tiles, next, decay, acc);
}

static void tile_step_rows(int rows, const Attention& a, const uint16_t* q, int tile_start, const int* first,
                           const int* last, const TilePointers& tiles, const TilePointers& next, RowState* state,
                           F* sums, float* acc) {
  switch (rows) {
    case 1: return tile_step<1>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
    case 2: return tile_step<2>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
    case 3: return tile_step<3>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
    case 4: return tile_step<4>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
    case 5:
      if constexpr (kRows >= 5) return tile_step<5>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
      break;
    case 6:
      if constexpr (kRows >= 6) return tile_step<6>(a, q, tile_start, first, last, tiles, next, state, sums, acc);
      break;
  }
}

static void merge(RowState& total, float* total_acc, const RowState& next, const float* next_acc, int head_dim) {
  if (next.max == -__builtin_inff()) return;
  if (total.max == -__builtin_inff()) {
    total = next;
    for (int i = 0; i < head_dim; i += kLanes) store(total_acc + i, load(next_acc + i));
    return;
  }
  const float top = total.max > next.max ? total.max : next.max;
  const float keep = exp2_of(total.max - top), take = exp2_of(next.max - top);
  total.max = top;
  total.sum = total.sum * keep + next.sum * take;
  for (int i = 0; i < head_dim; i += kLanes)
    store(total_acc + i, fma(load(next_acc + i), set1(take), mul(load(total_acc + i), set1(keep))));
}

static void finish(const RowState& state, const float* acc, int head_dim, uint16_t* out) {
  const float scale = 1.0f / state.sum;
  for (int i = 0; i < head_dim; i += kLanes) store_bf16(out + i, mul(load(acc + i), set1(scale)));
}

static void attend_rows(const Attention& a, int row0, int rows, int split0, int split1, RowState* state, float* total) {
  const int d = a.head_dim, lowest = first_key(a, a.first_position + row0 / a.group);
  const int highest = a.first_position + (row0 + rows - 1) / a.group;  // rows ascend in position
  // The first tile is on its way while the queries are gathered.
  const int begin = split0 * kSplit > lowest ? split0 * kSplit : lowest / kKeyTile * kKeyTile;
  if (begin <= highest) prefetch_tile(a, locate(a, begin, highest));

  alignas(64) uint16_t q[kRows * kMaxHeadDim];
  alignas(64) float acc[kRows * kMaxHeadDim];
  int first[kRows], last[kRows];
  for (int r = 0; r < rows; r++) {
    const int token = (row0 + r) / a.group, head = (row0 + r) % a.group;
    __builtin_memcpy(q + r * d, a.q + token * a.ldq + size_t(head) * d, sizeof(uint16_t) * d);
    last[r] = a.first_position + token;
    first[r] = first_key(a, last[r]);
    state[r] = {-__builtin_inff(), 0.0f};
  }
  for (int split = split0; split < split1; split++) {
    RowState here[kRows];
    F sums[kRows];
    for (int r = 0; r < rows; r++) here[r] = {-__builtin_inff(), 0.0f}, sums[r] = zero();
    for (int i = 0; i < rows * d; i += kLanes) store(acc + i, zero());
    const int end = split * kSplit + kSplit <= highest + 1 ? split * kSplit + kSplit : highest + 1;
    int start = split * kSplit;
    if (start + kKeyTile <= lowest) start = lowest / kKeyTile * kKeyTile;
    if (start >= end) continue;
    TilePointers tiles = locate(a, start, highest);
    for (; start < end; start += kKeyTile) {
      // The next tile comes in while this one is worked on, of the next split too; after the last there is none.
      const TilePointers next = start + kKeyTile <= highest ? locate(a, start + kKeyTile, highest) : tiles;
      tile_step_rows(rows, a, q, start, first, last, tiles, next, here, sums, acc);
      tiles = next;
    }
    for (int r = 0; r < rows; r++) {
      here[r].sum = reduce_add(sums[r]);
      merge(state[r], total + r * d, here[r], acc + r * d, d);
    }
  }
}

static void attend(const Attention& a, int row0, int rows, int split0, int split1, RowState* state, float* acc) {
  for (int r = 0; r < rows; r += kRows)
    attend_rows(a, row0 + r, rows - r < kRows ? rows - r : kRows, split0, split1, state + r, acc + r * a.head_dim);
}
