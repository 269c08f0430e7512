// The one micro-kernel, and the matrix products made of it. Included once per instruction set.
#pragma once

// acc[r][j] += x[r, :] . w[j, :] over all of K in order: R rows, NV vectors of outputs. Each output has its own
// accumulator and the same order of additions for any R and NV, which is where batch invariance comes from.
//   x  bf16 pairs, row r at x + r * ldx
//   w  vector j's k-pair kp at w[j] + kp * step: kLanes pairs of bf16
//   ahead  with AHEAD, memory laid out like w that will be read next: fetched line by line, in step with the arithmetic
template <int R, int NV, bool AHEAD = false>
static inline __attribute__((always_inline)) void accumulate(F (&acc)[R][NV], const uint16_t* x, size_t ldx, int kpairs,
                                                             const uint16_t* const (&w)[NV], size_t step,
                                                             const uint16_t* const* ahead = nullptr) {
  for (int kp = 0; kp < kpairs; kp++) {
    Pairs wv[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      wv[j] = load_pairs(w[j] + kp * step);
      if constexpr (AHEAD) __builtin_prefetch(ahead[j] + kp * step);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Pairs xv = set1_pair(x + r * ldx + 2 * kp);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = dot2(acc[r][j], wv[j], xv);
    }
  }
}

// R rows of bf16 pairs times one panel, into tile [R, 64].
template <int R>
static inline void panel_tile(const uint16_t* x, size_t ldx, const uint16_t* panel, int kpairs, float* tile) {
  constexpr int NV = R == 1 ? kVectorsOneRow : kVectors;
  for (int c = 0; c < kPanel; c += NV * kLanes) {
    const uint16_t* w[NV];
    F acc[R][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) w[j] = panel + 2 * (c + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = zero();
    accumulate<R, NV>(acc, x, ldx, kpairs, w, 2 * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) store(tile + r * kPanel + c + j * kLanes, acc[r][j]);
  }
}

static inline void panel_products(const Gemm& g, int row, int rows, int panel, float* tile) {
  const uint16_t* x = g.x + row * g.ldx;
  const uint16_t* w = g.w + size_t(panel) * g.kpairs * 2 * kPanel;
  switch (rows) {
    case 1: return panel_tile<1>(x, g.ldx, w, g.kpairs, tile);
    case 2: return panel_tile<2>(x, g.ldx, w, g.kpairs, tile);
    case 3: return panel_tile<3>(x, g.ldx, w, g.kpairs, tile);
    case 4: return panel_tile<4>(x, g.ldx, w, g.kpairs, tile);
    case 5:
      if constexpr (kRows >= 5) panel_tile<5>(x, g.ldx, w, g.kpairs, tile);
      return;
    case 6:
      if constexpr (kRows >= 6) panel_tile<6>(x, g.ldx, w, g.kpairs, tile);
      return;
  }
}

static void panel_rows(const Gemm& g, int row, int rows, int panel, float* tile) {
  panel_products(g, row, rows, panel, tile);
  if (g.bias == nullptr) return;
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < kPanel; c += kLanes)
      store(tile + r * kPanel + c, add(load(tile + r * kPanel + c), load(g.bias + size_t(panel) * kPanel + c)));
}

static void gemm_store(const Gemm& g, int row0, int row1, int panel, float* out, size_t ldo, int limit) {
  alignas(64) float tile[kRows * kPanel];
  const int base = panel * kPanel, cols = limit - base < kPanel ? limit - base : kPanel;
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
    panel_rows(g, row, rows, panel, tile);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < cols; c++) out[(row + r) * ldo + base + c] = tile[r * kPanel + c];
  }
}

static void gemm_add(const Gemm& g, int row0, int row1, int panel, float* out, size_t ldo, float scale) {
  alignas(64) float tile[kRows * kPanel];
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
    panel_rows(g, row, rows, panel, tile);
    for (int r = 0; r < rows; r++) {
      float* target = out + (row + r) * ldo + panel * kPanel;
      for (int c = 0; c < kPanel; c += kLanes)
        store(target + c, add(load(target + c), mul(load(tile + r * kPanel + c), set1(scale))));
    }
  }
}

static void gemm_gated(const Gemm& g, int row0, int row1, int pair, uint16_t* act, size_t lda, Activation activation) {
  alignas(64) float gate[kRows * kPanel], up[kRows * kPanel];
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
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
