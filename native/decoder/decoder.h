// The forward pass: one call over a ragged batch, every stage shared by all threads.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "decoder/weights.h"
#include "kernels/table.h"
#include "kv/pool.h"
#include "threads.h"

namespace octavo {

// n tokens in r sequences. Checked by the binding; nothing here checks again.
struct Batch {
  const int32_t* token_ids;        // [n]
  const int32_t* query_start_loc;  // [r + 1]
  const int32_t* seq_lens;         // [r], after this pass
  const int32_t* block_tables;     // [groups, r, table_width]
  int table_width;
  const int32_t* copies;  // [num_copies, 2], in order
  int num_copies;
  const int32_t* logit_rows;  // [num_logits]
  int num_logits;
  int num_tokens, num_seqs;
};

class Decoder {
 public:
  Decoder(DecoderShape shape, const Kernels& kernels, int threads);

  const DecoderShape& shape() const { return shape_; }
  const Kernels& kernels() const { return kernels_; }
  ThreadPool& threads() { return threads_; }
  Weights& weights() { return weights_; }
  // Tokens of the last pass, whose hidden states are still held.
  int num_hidden() const { return num_hidden_; }

  // Writes the batch's keys and values into the pool and logits [num_logits, vocab].
  void forward(const KVPool& pool, const Batch& batch, float* logits);
  // Logits [count, vocab] of tokens rows[0..count) of the last pass.
  void logits_of(const int32_t* rows, int count, float* logits);

 private:
  // A share of one layer's attention: rows [row0, row0 + rows) of one sequence and of `heads` KV heads over splits
  // [split0, split1). With partial >= 0 every split's result is kept apart, from that index on and for the next head
  // `head_partials` further, and merged in a later stage, so that the order of merging never depends on how the work
  // was cut.
  struct AttentionUnit {
    int seq, head, heads, row0, rows, split0, split1, partial, head_partials;
  };
  struct MergeUnit {
    int seq, head, row0, rows, splits, partial;
  };
  struct Pass;

  void reserve(int tokens, int logits);
  void plan_attention(const Batch& batch);
  void run_layer(Pass& pass, int layer);
  void run_matrix(Pass& pass, const Gemm& gemm, const Packed& w, int rows, float* out, size_t ldo, int limit);
  const uint16_t* run_input(Pass& pass, const float* pre_norm);
  void run_branch(Pass& pass, const Gemm& gemm, const Packed& w, const float* post_norm);
  void run_gated(Pass& pass, const uint16_t* x, const Packed& w);
  void run_attention(Pass& pass, int layer);
  void run_logits(Pass& pass, const int32_t* rows, int count, float* logits);
  void norm_all_heads(int layer, int token);
  void append(const Pass& pass, int layer, int token, int head);
  Attention view(const Pass& pass, int layer, int seq, int head, int heads) const;

  DecoderShape shape_;
  const Kernels& kernels_;
  ThreadPool threads_;
  Weights weights_;

  int stride_;             // fp32 row of the residual stream: hidden rounded up to a panel
  int qkv_stride_;         // likewise q, k and v together
  int act_stride_;         // likewise the intermediate size
  int rotary_stride_ = 0;  // cosines and sines of one token: of every rotary embedding, one after another
  int num_hidden_ = 0;
  int capacity_ = 0, logit_capacity_ = 0;
  Memory hidden_;    // fp32 [n, stride]
  Memory normed_;    // bf16 [n, stride], or for a few rows as much for each thread
  Memory qkv_;       // fp32 [n, qkv_stride]
  Memory q_;         // bf16 [n, q_size]
  Memory attended_;  // bf16 [n, q_size]
  Memory act_;       // bf16 [n, act_stride]
  Memory cos_sin_;   // fp32 [n, rotary_stride]
  Memory branch_;    // fp32 [n, stride]: what a post-norm takes; else empty
  Memory picked_;    // bf16 [logits, stride]
  bool append_with_attention_ = false;
  std::vector<int> seq_of_;       // [n]
  std::vector<int> position_of_;  // [n]
  std::vector<AttentionUnit> units_;
  std::vector<MergeUnit> merges_;
  std::vector<RowState> partial_states_;  // [partials, kRowTile]
  std::vector<float> partial_acc_;        // [partials, kRowTile, head_dim]
};

}  // namespace octavo
