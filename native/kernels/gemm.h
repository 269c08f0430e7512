// The one micro-kernel, and the matrix products made of it. Included once per instruction set.
#pragma once

// acc[r][j] += x[r, :] . w[j, :] over all of K in order: R rows, NV vectors of outputs. Each output has its own
// accumulator and the same order of additions for any R and NV, which is where batch invariance comes from.
//   x  bf16 pairs, row r at x + r * ldx
//   w  vector j's k-pair kp at w[j] + kp * step: kLanes pairs of bf16
template <int R, int NV>
static inline __attribute__((always_inline)) void accumulate(F (&acc)[R][NV], const uint16_t* x, size_t ldx, int kpairs,
                                                             const uint16_t* const (&w)[NV], size_t step) {
  for (int kp = 0; kp < kpairs; kp++) {
    Pairs wv[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) wv[j] = load_pairs(w[j] + kp * step);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Pairs xv = set1_pair(x + r * ldx + 2 * kp);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = dot2(acc[r][j], wv[j], xv);
    }
  }
}

// Rows of bf16 pairs times `cols` columns of a panel into tile [R, 64] (columns from col0 on are filled).
template <int R, int COLS>
static inline void panel_tile(const uint16_t* x, size_t ldx, const uint16_t* panel, int kpairs, int col0, float* tile) {
  constexpr int kWanted = R == 1 ? kVectorsOneRow : kVectors;
  constexpr int NV = kWanted * kLanes < COLS ? kWanted : COLS / kLanes;
  for (int c = col0; c < col0 + COLS; c += NV * kLanes) {
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

template <int COLS>
static inline void panel_rows_of(const uint16_t* x, size_t ldx, const uint16_t* w, int kpairs, int rows, int col0,
                                 float* tile) {
  switch (rows) {
    case 1: return panel_tile<1, COLS>(x, ldx, w, kpairs, col0, tile);
    case 2: return panel_tile<2, COLS>(x, ldx, w, kpairs, col0, tile);
    case 3: return panel_tile<3, COLS>(x, ldx, w, kpairs, col0, tile);
    case 4: return panel_tile<4, COLS>(x, ldx, w, kpairs, col0, tile);
    case 5:
      if constexpr (kRows >= 5) panel_tile<5, COLS>(x, ldx, w, kpairs, col0, tile);
      return;
    case 6:
      if constexpr (kRows >= 6) panel_tile<6, COLS>(x, ldx, w, kpairs, col0, tile);
      return;
  }
}

static void panel_rows(const Gemm& g, int row, int rows, int panel, int col0, int cols, float* tile) {
  const uint16_t* x = g.x + row * g.ldx;
  const uint16_t* w = g.w + size_t(panel) * g.kpairs * 2 * kPanel;
  if (cols == kPanel)
    panel_rows_of<kPanel>(x, g.ldx, w, g.kpairs, rows, col0, tile);
  else
    panel_rows_of<kPanel / 2>(x, g.ldx, w, g.kpairs, rows, col0, tile);
}

static void gemm_store(const Gemm& g, int row0, int row1, int panel, int col0, int cols, float* out, size_t ldo,
                       int limit) {
  alignas(64) float tile[kRows * kPanel];
  const int base = panel * kPanel, end = limit - base < col0 + cols ? limit - base : col0 + cols;
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
    panel_rows(g, row, rows, panel, col0, cols, tile);
    for (int r = 0; r < rows; r++)
      for (int c = col0; c < end; c++) out[(row + r) * ldo + base + c] = tile[r * kPanel + c];
  }
}

static void gemm_add(const Gemm& g, int row0, int row1, int panel, int col0, int cols, float* out, size_t ldo) {
  alignas(64) float tile[kRows * kPanel];
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
    panel_rows(g, row, rows, panel, col0, cols, tile);
    for (int r = 0; r < rows; r++) {
      float* target = out + (row + r) * ldo + panel * kPanel;
      for (int c = col0; c < col0 + cols; c += kLanes)
        store(target + c, add(load(target + c), load(tile + r * kPanel + c)));
    }
  }
}

// silu(x) = x / (1 + e^-x); e^-x is taken as 2^(-x log2 e), clamped so that it stays finite.
static inline F silu(F x) {
  const F e = exp2_of(min(mul(x, set1(-kLog2e)), set1(126.0f)));
  return div(x, add(set1(1.0f), e));
}

static void gemm_swiglu(const Gemm& g, int row0, int row1, int pair, int col0, int cols, uint16_t* act, size_t lda) {
  alignas(64) float gate[kRows * kPanel], up[kRows * kPanel];
  for (int row = row0; row < row1; row += kRows) {
    const int rows = row1 - row < kRows ? row1 - row : kRows;
    panel_rows(g, row, rows, 2 * pair, col0, cols, gate);
    panel_rows(g, row, rows, 2 * pair + 1, col0, cols, up);
    for (int r = 0; r < rows; r++)
      for (int c = col0; c < col0 + cols; c += kLanes)
        store_bf16(act + (row + r) * lda + pair * kPanel + c,
                   mul(silu(load(gate + r * kPanel + c)), load(up + r * kPanel + c)));
  }
}
