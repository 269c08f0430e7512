// The one micro-kernel. Included once per instruction set.
#pragma once

// acc[r][j] += x[r, :] . w[j, :] over pairs of K in order: R rows, NV vectors of outputs. Each output has its own
// accumulator and the same order of additions for any R and NV, which is where batch invariance comes from.
//   weights(kp, j)   pair kp of K of output vector j
//   input(kp, r, j)  where pair kp of row r lies, for output vector j
//   fetch(kp, j)     asks for memory that will be read next, in step with the arithmetic: once in EVERY pairs, which
//                    must divide kpairs
template <int EVERY, typename Acc, int R, int NV, typename Weights, typename Input, typename Fetch>
static inline __attribute__((always_inline)) void accumulate(Acc (&acc)[R][NV], int kpairs, Weights weights,
                                                             Input input, Fetch fetch) {
  for (int kp0 = 0; kp0 < kpairs; kp0 += EVERY) {
#pragma GCC unroll 8
    for (int kp = kp0; kp < kp0 + EVERY; kp++) {
      Pairs w[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) {
        w[j] = weights(kp, j);
        if (kp == kp0) fetch(kp, j);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) acc[r][j] = dot2(acc[r][j], w[j], set1_pair(input(kp, r, j)));
    }
  }
}
