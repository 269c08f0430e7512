// Matrix products with packed weights. Included once per instruction set.
#pragma once

// What a few tiles of rows share: K-pairs [kp0, kp1) of one panel or two, and, if `ahead` is not null, what is read
// next of the first of them.
struct PanelRun {
  const uint16_t* panel;
  size_t panel_size;  // elements from one panel to the next
  int kp0, kp1;
  const char* ahead;
};

// The run's products of R rows, added to out [R, kWide], or in place of it if kp0 is 0. One line of each panel's next
// run comes into the second-level cache with each k-pair; into the first it would take the place of what is waited for.
constexpr int kWide = 2 * kPanel;
template <int R, int PANELS>
static inline void panel_tile(const uint16_t* x, size_t ldx, const PanelRun& run, float* out) {
  constexpr int kMost = R == 1 ? kVectorsOneRow : kVectors, kAll = PANELS * kPanel / kLanes;
  constexpr int NV = kMost < kAll ? kMost : kAll;
  const int kpairs = run.kp1 - run.kp0;
  for (int c = 0; c < PANELS * kPanel; c += NV * kLanes) {
    const uint16_t* w[NV];
    F acc[R][NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      const int column = c + j * kLanes;
      w[j] = run.panel + column / kPanel * run.panel_size + 2 * (size_t(run.kp0) * kPanel + column % kPanel);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[r][j] = run.kp0 == 0 ? zero() : load(out + r * kWide + c + j * kLanes);
    const uint16_t* x0 = x + 2 * run.kp0;
    const auto weights = [&](int kp, int j) { return load_pairs(w[j] + kp * 2 * kPanel); };
    const auto input = [&](int kp, int r, int) { return x0 + r * ldx + 2 * kp; };
    if (run.ahead != nullptr && c == 0)
      accumulate<1>(acc, kpairs, weights, input, [&](int kp, int j) {
        if (j < PANELS) __builtin_prefetch(run.ahead + j * run.panel_size * sizeof(uint16_t) + kp * 64, 0, 2);
      });
    else
      accumulate<1>(acc, kpairs, weights, input, [](int, int) {});
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) store(out + r * kWide + c + j * kLanes, acc[r][j]);
  }
}

template <int PANELS>
static void panel_tile_rows(int rows, const uint16_t* x, size_t ldx, const PanelRun& run, float* out) {
  switch (rows) {
    case 1: return panel_tile<1, PANELS>(x, ldx, run, out);
    case 2: return panel_tile<2, PANELS>(x, ldx, run, out);
    case 3: return panel_tile<3, PANELS>(x, ldx, run, out);
    case 4: return panel_tile<4, PANELS>(x, ldx, run, out);
    case 5:
      if constexpr (kRows >= 5) panel_tile<5, PANELS>(x, ldx, run, out);
      return;
    case 6:
      if constexpr (kRows >= 6) panel_tile<6, PANELS>(x, ldx, run, out);
      return;
  }
}

// A few tiles of rows go through K together in short runs: the weights of one run stay in the first-level cache for all
// of them, and the next run's come in meanwhile. One tile after another over the whole panel would wait for memory in
// the first and leave it idle in the others. Sums pass from run to run in fp32, so no bit depends on where they are
// cut.
constexpr int kRunPairs = 96;
constexpr int kTogether = 4 * kRows;

// How the rows are cut: together in steps of kTogether if that is all of them, else tile by tile over panels that the
// second-level cache holds.
static inline int row_step(int row0, int row1) { return row1 - row0 <= kTogether ? kTogether : kRows; }

// Rows [row, row + rows), rows <= kTogether, of one panel or two, into out [rows, kWide], bias included.
template <int PANELS>
static inline void panel_rows(const Gemm& g, int row, int rows, int panel, float* out) {
  const uint16_t* x = g.x + row * g.ldx;
  const size_t panel_size = size_t(g.kpairs) * 2 * kPanel;
  const uint16_t* w = g.w + panel * panel_size;
  const int length = rows > kRows ? kRunPairs / PANELS : g.kpairs;
  PanelRun run{w, panel_size, 0, 0, nullptr};
  for (; run.kp0 < g.kpairs; run.kp0 = run.kp1) {
    run.kp1 = run.kp0 + length < g.kpairs ? run.kp0 + length : g.kpairs;
    const uint16_t* next = run.kp1 < g.kpairs ? w + size_t(run.kp1) * 2 * kPanel : w + PANELS * panel_size;
    for (int r = 0; r < rows; r += kRows) {
      // Two tiles fetch the two halves of the next run.
      run.ahead = rows > kRows && r <= kRows ? (const char*)next + r / kRows * length * 64 : nullptr;
      panel_tile_rows<PANELS>(rows - r < kRows ? rows - r : kRows, x + r * g.ldx, g.ldx, run, out + r * kWide);
    }
  }
  if (g.bias == nullptr) return;
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < PANELS * kPanel; c += kLanes)
      store(out + r * kWide + c, add(load(out + r * kWide + c), load(g.bias + size_t(panel) * kPanel + c)));
}

static void panel_rows(const Gemm& g, int row, int rows, int panel, int panels, float* out) {
  if (panels == 1)
    panel_rows<1>(g, row, rows, panel, out);
  else
    panel_rows<2>(g, row, rows, panel, out);
}

static void gemm_store(const Gemm& g, int row0, int row1, int panel, int panels, float* out, size_t ldo, int limit) {
  alignas(64) float y[kTogether * kWide];
  const int base = panel * kPanel, columns = panels * kPanel;
  const int end = limit - base < columns ? limit - base : columns;
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, panel, panels, y);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < end; c++) out[(row + r) * ldo + base + c] = y[r * kWide + c];
  }
}

static void gemm_add(const Gemm& g, int row0, int row1, int panel, int panels, float* out, size_t ldo, float scale) {
  alignas(64) float y[kTogether * kWide];
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, panel, panels, y);
    for (int r = 0; r < rows; r++) {
      float* target = out + (row + r) * ldo + panel * kPanel;
      for (int c = 0; c < panels * kPanel; c += kLanes)
        store(target + c, add(load(target + c), mul(load(y + r * kWide + c), set1(scale))));
    }
  }
}

static void gemm_gated(const Gemm& g, int row0, int row1, int pair, uint16_t* act, size_t lda, Activation activation) {
  alignas(64) float y[kTogether * kWide];  // 32 gates, then their 32 ups
  const int step = row_step(row0, row1);
  for (int row = row0; row < row1; row += step) {
    const int rows = row1 - row < step ? row1 - row : step;
    panel_rows(g, row, rows, 2 * pair, 2, y);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < kPanel; c += kLanes) {
        const F x = load(y + r * kWide + c);
        const F gated = activation == Activation::kSilu ? silu(x) : gelu_tanh(x);
        store_bf16(act + (row + r) * lda + pair * kPanel + c, mul(gated, load(y + r * kWide + kPanel + c)));
      }
  }
}
