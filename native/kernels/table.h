// The kernels as the rest of the core sees them: one table of function pointers per instruction set.
//
// Kernels are arithmetic without policy. None knows about threads, requests or memory management; each computes
// every output in one fixed order, so that it does not matter who calls it or with how many rows.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int kPanel = 32;       // outputs in one packed panel of weights
constexpr int kRowTile = 6;      // query rows that attention takes through the keys together
constexpr int kTileTokens = 16;  // tokens in one K or V tile of a block
constexpr int kKeyTile = 64;     // keys per step of the attention recurrence, aligned to position 0
constexpr int kSplit = 256;      // keys after which the recurrence starts afresh, aligned to position 0
constexpr int kMaxHeadDim = 512;
constexpr int kHeadsTogether = 4;  // KV heads that attention takes through the blocks together, at most
constexpr int kInt4Group = 32;     // elements of a 4-bit vector that share a scale and a minimum

// y[row, :] = x[row, :] . w^T + bias
struct Gemm {
  const uint16_t* x;  // bf16 [rows, ldx], ldx >= 2 * kpairs
  size_t ldx;
  const uint16_t* w;  // packed bf16 [panels][kpairs][32][2]
  int kpairs;
  const float* bias;  // [panels][32], or null
};

// How keys or values are written down.
enum class KVCodec { kBf16, kInt8, kFp8, kInt4 };

// Where the keys or the values of one layer and head lie, in bytes from a block's start and from tile to tile.
struct KVPlane {
  KVCodec codec;
  size_t codes, scales, code_tile, scale_tile;
};

enum class Activation { kSilu, kGeluTanh };

// What one query row has seen so far: out = acc / sum, with logits measured against max (in units of log2).
struct RowState {
  float max, sum;
};

// The keys and values of one sequence, one layer and a few KV heads side by side, and the queries that look at them.
struct Attention {
  const uint16_t* q;  // bf16 [tokens, ldq] of this sequence, already at the first head of the group
  size_t ldq;
  const uint8_t* pool;         // block b starts at pool + b * block_bytes
  const int32_t* block_table;  // [ceil(seq_len / block_size)]
  size_t block_bytes;
  KVPlane keys, values;  // of this layer and the first head
  size_t head_stride;    // bytes from there to the next head's
  int heads;
  int block_tiles;  // tiles in a block
  int head_dim;
  int group;           // query heads per KV head; row = token * group + head
  int first_position;  // of token 0
  int window;          // keys a query sees, itself included; 0 for all
  float score_scale;   // a score, in units of log2, is q . k times this,
  float softcap_log2;  // or, if this is not 0, this times tanh(q . k times score_scale)
};

struct Kernels {
  const char* name;

  // out = y for rows [row0, row1) of one panel or two; columns from `limit` on are not written.
  void (*gemm_store)(const Gemm&, int row0, int row1, int panel, int panels, float* out, size_t ldo, int limit);
  // out += scale * y
  void (*gemm_add)(const Gemm&, int row0, int row1, int panel, int panels, float* out, size_t ldo, float scale);
  // act = activation(gate) * up; panels 2 * pair and 2 * pair + 1 of w hold 32 gates and their 32 ups.
  void (*gemm_gated)(const Gemm&, int row0, int row1, int pair, uint16_t* act, size_t lda, Activation activation);

  // y = x * rsqrt(mean(x^2) + eps) * weight; stride is a multiple of 16, x is zero from `size` on.
  // out = bf16(y)
  void (*rmsnorm)(const float* x, const float* weight, uint16_t* out, int size, int stride, float eps);
  // x = y
  void (*rmsnorm_inplace)(float* x, const float* weight, int size, int stride, float eps);
  // out += scale * y
  void (*rmsnorm_add)(const float* x, const float* weight, float* out, int size, int stride, float eps, float scale);
  // out = bf16(x); n is a multiple of 16.
  void (*narrow)(const float* x, uint16_t* out, int n);
  // x *= scale, then, if cap is not 0, x = cap * tanh(x / cap).
  void (*squash)(float* x, int n, float scale, float cap);

  // Rotate the first rotary_dim elements of one head (rotate-half) by cos and sin [rotary_dim / 2], in place.
  void (*rotate)(float* x, const float* cos_sin, int rotary_dim);
  // The orthonormal Hadamard transform of one head, in place: in blocks of the largest power of two in n.
  void (*hadamard)(float* x, int n);
  // Write one key, or one value, into slot `slot` of a tile's codes and scales.
  void (*append_key)(KVCodec, const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot);
  void (*append_value)(KVCodec, const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot);

  // Splits [split0, split1) of rows [row0, row0 + rows), rows <= 6, of each head, merged left to right into state and
  // acc [.., head_dim]: those of the next head lie head_rows rows further on. A row that sees none of these keys ends
  // with max = -inf.
  void (*attend)(const Attention&, int row0, int rows, int split0, int split1, RowState* state, float* acc,
                 size_t head_rows);
  // Fold (state, acc) of the next splits into the total so far; both [head_dim].
  void (*merge)(RowState& total, float* total_acc, const RowState& next, const float* next_acc, int head_dim);
  // out = bf16(acc / sum).
  void (*finish)(const RowState& state, const float* acc, int head_dim, uint16_t* out);

  float (*row_max)(const float* x, int n);
  // Sum of exp((x - max) * scale) in a fixed order.
  float (*sum_exp)(const float* x, int n, float max, float scale);
  // out = exp((x - max) * scale)
  void (*exp_into)(const float* x, int n, float max, float scale, float* out);

  // For measuring the machine: what arithmetic and memory give at most. burst does burst_flops operations a round.
  float (*burst)(long rounds);
  float (*read_all)(const float* data, size_t floats);
  int burst_flops;
};

// Null if this build or this machine lacks the instruction set.
const Kernels* find_kernels(const char* name);
// Names this machine can run, best first, ending in null.
const char* const* supported_isas();

namespace generic {
extern const Kernels kernels;
}
#ifdef OCTAVO_X86
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif

}  // namespace octavo
