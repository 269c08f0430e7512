// The one micro-kernel, and the matrix products made of it. Included once per instruction set.
#pragma once

// acc[r][j] += x[r, :] . w[j, :] over K in order: R rows, NV vectors of outputs. Each output has its own accumulator
// and the same order of additions for any R and NV, which is where batch invariance comes from.
//   x  bf16 pairs, row r at x + r * ldx
//   w  vector j's k-pair kp at w[j] + kp * step: kLanes pairs of bf16
//   fetch(kp, j)  asks for memory that will be read next, in step with the arithmetic
template <int R, int NV, typename Fetch>
static inline __attribute__((always_inline)) void accumulate(F (&acc)[R][NV], const uint16_t* x, size_t ldx, int kpairs,
                                                             const uint16_t* const (&w)[NV], size_t step, Fetch fetch) {
  for (int kp = 0; kp < kpairs; kp++) {
    Pairs wv[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      wv[j] = load_pairs(w[j] + kp * step);
      fetch(kp, j);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Pairs xv = set1_pair(x + r * ldx + 2 * kp);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = dot2(acc[r][j], wv[j], xv);
    }
  }
}

// K-pairs [kp0, kp1) of R rows times one panel, added to tile [R, 64], or in place of it if kp0
// is 0. `ahead`, if it is not null, is memory to bring into the second-level cache meanwhile, kFetch lines for each
// k-pair. Into the first level it would take the places of what waits to be loaded.
constexpr int kFetch = 2;
template <int R>
static inline void panel_tile(const uint16_t* x, size_t ldx, const uint16_t* panel, int kp0, int kp1, const char* ahead,
                              float* tile) {
  constexpr int NV = R == 1 ? kVectorsOneRow : kVectors;
  for (int c = 0; c < kPanel; c += NV * kLanes) {
    const uint16_t* w[NV];
    F acc[R][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) w[j] = panel + size_t(kp0) * 2 * kPanel + 2 * (c + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = kp0 == 0 ? zero() : load(tile + r * kPanel + c + j * kLanes);
    if (ahead != nullptr && c == 0)
      accumulate<R, NV>(acc, x + 2 * kp0, ldx, kp1 - kp0, w, 2 * kPanel, [&](int kp, int j) {
        if (j < kFetch) __builtin_prefetch(ahead + (kp * kFetch + j) * 64, 0, 2);
      });
    else
      accumulate<R, NV>(acc, x + 2 * kp0, ldx, kp1 - kp0, w, 2 * kPanel, [](int, int) {});
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) store(tile + r * kPanel + c + j * kLanes, acc[r][j]);
  }
}

static void panel_tile_rows(int rows, const uint16_t* x, size_t ldx, const uint16_t* panel, int kp0, int kp1,
                            const char* ahead, float* tile) {
  switch (rows) {
    case 1: return panel_tile<1>(x, ldx, panel, kp0, kp1, ahead, tile);
    case 2: return panel_tile<2>(x, ldx, panel, kp0, kp1, ahead, tile);
    case 3: return panel_tile<3>(x, ldx, panel, kp0, kp1, ahead, tile);
    case 4: return panel_tile<4>(x, ldx, panel, kp0, kp1, ahead, tile);
    case 5:
      if constexpr (kRows >= 5) panel_tile<5>(x, ldx, panel, kp0, kp1, ahead, tile);
      return;
    case 6:
      if constexpr (kRows >= 6) panel_tile<6>(x, ldx, panel, kp0, kp1, ahead, tile);
      return;
  }
}

// A few tiles of rows go through K together in short runs: the weights of one run stay in the first-level cache for all
// of them, and the next run's come in meanwhile. One tile after another over the whole panel would wait for memory in
// the first and leave it idle in the others. Sums pass from run to run in fp32, so no bit depends on where they are
// cut.
constexpr int kRunPairs = 48;
constexpr int kTogether = 4 * kRows;

// How the rows are cut: together in steps of kTogether if that is all of them, else tile by tile over a panel
// that the second-level cache holds.
static inline int row_step(int row0, int row1) { return row1 - row0 <= kTogether ? kTogether : kRows; }

// Rows [row, row + rows), rows <= kTogether, of one panel, into out [rows, 64], bias included.
static void panel_rows(const Gemm& g, int row, int rows, int panel, float* out) {
  const uint16_t* x = g.x + row * g.ldx;
  const uint16_t* w = g.w + size_t(panel) * g.kpairs * 2 * kPanel;
  const int run = rows > kRows ? kRunPairs : g.kpairs;
  for (int kp0 = 0; kp0 < g.kpairs; kp0 += run) {
    const int kp1 = kp0 + run < g.kpairs ? kp0 + run : g.kpairs;
    const char* next = (const char*)(w + size_t(kp1) * 2 * kPanel);
    for (int r = 0; r < rows; r += kRows) {
      const size_t fetched = size_t(r / kRows) * run * kFetch * 64;
      const char* ahead = rows > kRows && fetched < size_t(run) * 4 * kPanel ? next + fetched : nullptr;
      panel_tile_rows(rows - r < kRows ? rows - r : kRows, x + r * g.ldx, g.ldx, w, kp0, kp1, ahead, out + r * kPanel);
    }
  }
  if (g.bias == nullptr) return;
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < kPanel; c += kLanes)
      store(out + r * kPanel + c, add(load(out + r * kPanel + c), load(g.bias + size_t(panel) * kPanel + c)));
}

static void gemm_store(const Gemm& g, int row0, int row1, int panel, float* out, size_t ldo, int limit) {
  alignas(64) float y[kTogether * kPanel];
  const int base = panel * kPanel, end = limit - base < kPanel ? limit - base : kPanel;
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, panel, y);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < end; c++) out[(row + r) * ldo + base + c] = y[r * kPanel + c];
  }
}

static void gemm_add(const Gemm& g, int row0, int row1, int panel, float* out, size_t ldo, float scale) {
  alignas(64) float y[kTogether * kPanel];
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, panel, y);
    for (int r = 0; r < rows; r++) {
      float* target = out + (row + r) * ldo + panel * kPanel;
      for (int c = 0; c < kPanel; c += kLanes)
        store(target + c, add(load(target + c), mul(load(y + r * kPanel + c), set1(scale))));
    }
  }
}

static void gemm_gated(const Gemm& g, int row0, int row1, int pair, uint16_t* act, size_t lda, Activation activation) {
  alignas(64) float gate[kTogether * kPanel], up[kTogether * kPanel];
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, 2 * pair, gate);
    panel_rows(g, row, rows, 2 * pair + 1, up);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < kPanel; c += kLanes) {
        const F x = load(gate + r * kPanel + c);
        const F gated = activation == Activation::kSilu ? silu(x) : gelu_tanh(x);
        store_bf16(act + (row + r) * lda + pair * kPanel + c, mul(gated, load(up + r * kPanel + c)));
      }
  }
}
