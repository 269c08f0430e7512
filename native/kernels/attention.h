// Paged attention: one recurrence for every row, whether it is prefill or decode. Included once per instruction set.
//
// Keys are taken in tiles of 64, aligned to absolute position 0; (max, sum, acc) starts afresh every 256 absolute
// positions (a split) and splits are merged left to right. Which tiles and splits exist for a row depends on its own
// position and window only. Rows share a pass over the keys but never an accumulator, so a row's result does not
// depend on its company. After FlashAttention-2 (Dao 2023) and PagedAttention (Kwon et al. 2023).
#pragma once

// First and last position that row sees.
static inline int first_key(const Attention& a, int position) {
  return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

// One key tile: where its keys and its values lie.
struct KVTiles {
  Tiles keys, values;
};

// The key tile at tile_start. What of it lies beyond position `last` is not in the block table; the tile of `last`
// stands in, and is masked.
static inline KVTiles locate(const Attention& a, int tile_start, int last) {
  KVTiles tiles;
  const int first_tile = tile_start / kTileTokens, last_tile = last / kTileTokens;
  int index = first_tile / a.block_tiles, within = first_tile % a.block_tiles;
  for (int i = 0; i < kTiles; i++) {
    const uint8_t* block = a.pool + size_t(a.block_table[index]) * a.block_bytes;
    tiles.keys.codes[i] = block + a.keys.codes + within * a.keys.code_tile;
    tiles.keys.scales[i] = block + a.keys.scales + within * a.keys.scale_tile;
    tiles.values.codes[i] = block + a.values.codes + within * a.values.code_tile;
    tiles.values.scales[i] = block + a.values.scales + within * a.values.scale_tile;
    if (first_tile + i < last_tile && ++within == a.block_tiles) {
      within = 0;
      index++;
    }
  }
  return tiles;
}

static inline void prefetch(const Attention& a, const KVTiles& tiles) {
  prefetch_tiles(tiles.keys, a.keys.code_tile, a.keys.scale_tile);
  prefetch_tiles(tiles.values, a.values.code_tile, a.values.scale_tile);
}

// Row r's 64 scores become probabilities against its new maximum. Masked probabilities are exactly zero.
static inline void soften(const Attention& a, const float* scores, int r, RowState& state, F& sum,
                          Probabilities& probabilities) {
  constexpr int kCount = kKeyTile / kLanes;
  const int lo = probabilities.lo[r], hi = probabilities.hi[r];
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
  // The largest probability, and the factor for what was summed before: one of them is 1.
  probabilities.top[r] = new_max == tile_max ? 1.0f : exp2_of(tile_max - new_max);
  probabilities.decay[r] = new_max == state.max ? 1.0f : exp2_of(state.max - new_max);
  F tile_sum = zero();
#pragma GCC unroll 16
  for (int j = 0; j < kCount; j++) {
    t[j] = exp2_of(sub(t[j], set1(new_max)));
    tile_sum = add(tile_sum, t[j]);
    store(probabilities.p + r * kKeyTile + j * kLanes, t[j]);
  }
  sum = fma(sum, set1(probabilities.decay[r]), tile_sum);
  state.max = new_max;
}

// One key tile, for rows that see some of it and rows that see none.
static void tile_step(const Attention& a, int rows, const Queries& queries, int tile_start, const int* first,
                      const int* last, const KVTiles& tiles, const KVTiles& next, RowState* state, F* sums,
                      float* acc) {
  alignas(64) float scores[kRows * kKeyTile];
  Probabilities probabilities;
  key_ops[int(a.keys.codec)].score(rows, queries, a.head_dim, tiles.keys, next.keys, scores);
  for (int r = 0; r < rows; r++) {
    probabilities.lo[r] = first[r] - tile_start;
    probabilities.hi[r] = last[r] + 1 - tile_start;
    if (probabilities.hi[r] <= 0 || probabilities.lo[r] >= kKeyTile) {  // its state stays as it is
      probabilities.top[r] = 0.0f;
      probabilities.decay[r] = 1.0f;
      for (int j = 0; j < kKeyTile; j += kLanes) store(probabilities.p + r * kKeyTile + j, zero());
    } else {
      soften(a, scores + r * kKeyTile, r, state[r], sums[r], probabilities);
    }
  }
  value_ops[int(a.values.codec)].add(rows, probabilities, a.head_dim, tiles.values, next.values, acc);
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

constexpr int kAhead = 2;  // key tiles that are asked for before they are used; more of them gained nothing

// The same tile of KV head `head`, where `tiles` is that of head 0.
static inline KVTiles of_head(const Attention& a, const KVTiles& tiles, int head) {
  KVTiles shifted = tiles;
  const size_t bytes = head * a.head_stride;
  for (int i = 0; i < kTiles; i++) {
    shifted.keys.codes[i] += bytes;
    shifted.keys.scales[i] += bytes;
    shifted.values.codes[i] += bytes;
    shifted.values.scales[i] += bytes;
  }
  return shifted;
}

// What one KV head's query rows bring along and gather on the way through the keys.
struct HeadRows {
  Queries queries;
  RowState here[kRows];  // since the split began
  F sums[kRows];
  alignas(64) float acc[kRows * kMaxHeadDim];
};

static void attend_rows(const Attention& a, int row0, int rows, int split0, int split1, RowState* state, float* total,
                        size_t head_rows) {
  const int d = a.head_dim, lowest = first_key(a, a.first_position + row0 / a.group);
  const int highest = a.first_position + (row0 + rows - 1) / a.group;  // rows ascend in position
  // Key tiles from the first one that a row sees; each is asked for kAhead tiles before it is used, the first ones
  // while the queries are gathered. `near` are those asked for.
  const int begin = split0 * kSplit > lowest ? split0 * kSplit : lowest / kKeyTile * kKeyTile;
  const int end = split1 * kSplit <= highest ? split1 * kSplit : highest + 1;
  KVTiles near[kAhead];
  for (int i = 0; i < kAhead && begin + i * kKeyTile <= highest; i++) {
    near[i] = locate(a, begin + i * kKeyTile, highest);
    for (int h = 0; h < a.heads; h++) prefetch(a, of_head(a, near[i], h));
  }

  HeadRows heads[kHeadsTogether];
  int first[kRows], last[kRows];
  for (int r = 0; r < rows; r++) {
    const int token = (row0 + r) / a.group, query_head = (row0 + r) % a.group;
    last[r] = a.first_position + token;
    first[r] = first_key(a, last[r]);
    for (int h = 0; h < a.heads; h++) {
      const uint16_t* q = a.q + token * a.ldq + size_t(h * a.group + query_head) * d;
      key_ops[int(a.keys.codec)].prepare(q, r, d, heads[h].queries);
      state[h * head_rows + r] = {-__builtin_inff(), 0.0f};
    }
  }
  for (int start = begin, i = 0; start < end; start += kKeyTile, i = (i + 1) % kAhead) {
    const KVTiles tiles = near[i];
    // Beyond the last tile there is nothing to ask for: what is there already is asked for again.
    if (start + kAhead * kKeyTile <= highest) near[i] = locate(a, start + kAhead * kKeyTile, highest);
    const bool begins = start == begin || start % kSplit == 0;
    const bool ends = start + kKeyTile >= end || (start + kKeyTile) % kSplit == 0;
    for (int h = 0; h < a.heads; h++) {
      HeadRows& head = heads[h];
      if (begins) {
        for (int r = 0; r < rows; r++) head.here[r] = {-__builtin_inff(), 0.0f}, head.sums[r] = zero();
        for (int c = 0; c < rows * d; c += kLanes) store(head.acc + c, zero());
      }
      tile_step(a, rows, head.queries, start, first, last, of_head(a, tiles, h), of_head(a, near[i], h), head.here,
                head.sums, head.acc);
      for (int r = 0; r < (ends ? rows : 0); r++) {
        head.here[r].sum = reduce_add(head.sums[r]);
        merge(state[h * head_rows + r], total + (h * head_rows + r) * d, head.here[r], head.acc + r * d, d);
      }
    }
  }
}

static void attend(const Attention& a, int row0, int rows, int split0, int split1, RowState* state, float* acc,
                   size_t head_rows) {
  for (int r = 0; r < rows; r += kRows)
    attend_rows(a, row0 + r, rows - r < kRows ? rows - r : kRows, split0, split1, state + r, acc + r * a.head_dim,
                head_rows);
}
