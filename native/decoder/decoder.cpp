#include "decoder/decoder.h"

#include <algorithm>

#include "rotary.h"

namespace octavo {
namespace {

int round_up(int value, int step) { return (value + step - 1) / step * step; }
int ceil_div(int value, int step) { return (value + step - 1) / step; }

// A unit of a matrix product holds this many rows, a whole number of micro-kernel tiles.
constexpr int kRowsPerUnit = 96;
// Up to here a matrix product goes panel by panel, so that the work divides evenly; beyond, two panels at a time.
constexpr int kFewRows = 24;
// Units of attention per thread: enough to even out, few enough that each is worth its own bookkeeping.
constexpr int kUnitsPerThread = 8;
// With no more rows than this, every thread norms all of them for itself.
constexpr int kOwnRows = 16;

}  // namespace

// What all threads of one pass share, and each thread's own place in the sequence of stages.
struct Decoder::Pass {
  ThreadPool& pool;
  int thread;
  const KVPool* kv;
  const Batch* batch;
  int stage = 0;

  template <typename F>
  void run(size_t units, F&& unit) {
    // Two stages ahead: nobody uses that counter yet, and two barriers lie before anybody does.
    if (thread == 0) pool.reset(stage + 2);
    pool.share(stage++, thread, units, unit);
    pool.barrier();
  }

  // A matrix product: unit(panel, panels, row0, row1) for all panels, one or two at a time, and every run of rows.
  template <typename F>
  void run_product(int panels, int rows, F&& unit) {
    const int together = rows > kFewRows ? 2 : 1;
    const int runs = ceil_div(rows, kRowsPerUnit);
    run(size_t(ceil_div(panels, together)) * runs, [&](size_t i) {
      const int panel = int(i / runs) * together, row0 = int(i % runs) * kRowsPerUnit;
      unit(panel, std::min(together, panels - panel), row0, std::min(rows, row0 + kRowsPerUnit));
    });
  }
};

Decoder::Decoder(DecoderShape shape, const Kernels& kernels, int threads)
    : shape_(std::move(shape)), kernels_(kernels), threads_(threads), weights_(shape_) {
  stride_ = round_up(shape_.hidden_size, kPanel);
  qkv_stride_ = round_up(shape_.q_size() + 2 * shape_.kv_size(), kPanel);
  act_stride_ = round_up(shape_.intermediate_size, kPanel);
  for (const Rotary& rotary : shape_.rotaries) rotary_stride_ += rotary.dim();
}

void Decoder::reserve(int tokens, int logits) {
  if (tokens > capacity_) {
    const size_t n = tokens;
    hidden_ = Memory(sizeof(float) * n * stride_);
    normed_ = Memory(sizeof(uint16_t) * std::max(n, size_t(kOwnRows) * threads_.size()) * stride_);
    qkv_ = Memory(sizeof(float) * n * qkv_stride_);
    q_ = Memory(sizeof(uint16_t) * n * shape_.q_size());
    attended_ = Memory(sizeof(uint16_t) * n * shape_.q_size());
    act_ = Memory(sizeof(uint16_t) * n * act_stride_);
    if (shape_.post_norm) branch_ = Memory(sizeof(float) * n * stride_);
    if (rotary_stride_ > 0) cos_sin_ = Memory(sizeof(float) * n * rotary_stride_);
    seq_of_.resize(n);
    position_of_.resize(n);
    capacity_ = tokens;
  }
  if (logits > logit_capacity_) {
    picked_ = Memory(sizeof(uint16_t) * size_t(logits) * stride_);
    logit_capacity_ = logits;
  }
}

void Decoder::forward(const KVPool& kv, const Batch& batch, float* logits) {
  num_hidden_ = 0;  // should memory run out below, no stale states are left to score
  reserve(batch.num_tokens, batch.num_logits);
  for (int s = 0; s < batch.num_seqs; s++)
    for (int i = batch.query_start_loc[s]; i < batch.query_start_loc[s + 1]; i++) {
      seq_of_[i] = s;
      position_of_[i] = batch.seq_lens[s] - batch.query_start_loc[s + 1] + i;
    }
  plan_attention(batch);
  // In order and by one thread: a later copy may read or overwrite the target of an earlier one.
  for (int i = 0; i < batch.num_copies; i++) kv.copy(batch.copies[2 * i], batch.copies[2 * i + 1]);

  threads_.run([&](int thread) {
    Pass pass{threads_, thread, &kv, &batch};
    pass.run(batch.num_tokens, [&](size_t i) {
      float* hidden = hidden_.as<float>() + i * stride_;
      weights_.embed(batch.token_ids[i], hidden);
      // Nobody writes these but gemm_add, with infinity times 0 where a value overflowed: none outlives its pass.
      std::fill(hidden + shape_.hidden_size, hidden + stride_, 0.0f);
      float* cos_sin = cos_sin_.as<float>() + i * rotary_stride_;
      for (const Rotary& rotary : shape_.rotaries) {
        rotary_factors(position_of_[i], rotary.inv_freq.data(), int(rotary.inv_freq.size()), rotary.scale, cos_sin);
        cos_sin += rotary.dim();
      }
    });
    for (int layer = 0; layer < shape_.num_layers(); layer++) run_layer(pass, layer);
    run_logits(pass, batch.logit_rows, batch.num_logits, logits);
  });
  num_hidden_ = batch.num_tokens;
}

void Decoder::logits_of(const int32_t* rows, int count, float* logits) {
  reserve(0, count);
  threads_.run([&](int thread) {
    Pass pass{threads_, thread, nullptr, nullptr};
    run_logits(pass, rows, count, logits);
  });
}

void Decoder::run_layer(Pass& pass, int layer) {
  const LayerWeights& w = weights_.layers[layer];
  const int n = pass.batch->num_tokens;
  const uint16_t* x = run_input(pass, w.attn_norm);
  run_matrix(pass, {x, size_t(stride_), w.qkv.data, w.qkv.kpairs(), w.qkv_bias}, w.qkv, n, qkv_.as<float>(),
             qkv_stride_, w.qkv.n);
  if (!append_with_attention_)
    pass.run(n, [&](size_t token) {
      if (shape_.qk_norm == QkNorm::kFull) norm_all_heads(layer, int(token));
      for (int head = 0; head < shape_.num_kv_heads; head++) append(pass, layer, int(token), head);
    });
  run_attention(pass, layer);
  run_branch(pass, {attended_.as<uint16_t>(), size_t(shape_.q_size()), w.o.data, w.o.kpairs(), w.o_bias}, w.o,
             w.attn_post_norm);
  run_gated(pass, run_input(pass, w.mlp_norm), w.gate_up);
  run_branch(pass, {act_.as<uint16_t>(), size_t(act_stride_), w.down.data, w.down.kpairs(), nullptr}, w.down,
             w.mlp_post_norm);
}

// What a layer's half reads: the residual stream, normed if the model norms before. bf16 [n, stride].
const uint16_t* Decoder::run_input(Pass& pass, const float* pre_norm) {
  const int n = pass.batch->num_tokens;
  uint16_t* normed = normed_.as<uint16_t>();
  const auto row = [&](size_t i) {
    const float* x = hidden_.as<float>() + i * stride_;
    if (pre_norm != nullptr)
      kernels_.rmsnorm(x, pre_norm, normed + i * stride_, shape_.hidden_size, stride_, shape_.norm_eps);
    else
      kernels_.narrow(x, normed + i * stride_, stride_);
  };
  if (n > kOwnRows) {
    pass.run(n, row);
    return normed;
  }
  // For a few rows each thread works all of them out for itself: that is quicker than to meet.
  normed += size_t(pass.thread) * kOwnRows * stride_;
  for (int i = 0; i < n; i++) row(i);
  return normed;
}

// What it adds to the residual stream, normed if the model norms after.
void Decoder::run_branch(Pass& pass, const Gemm& gemm, const Packed& w, const float* post_norm) {
  const int n = pass.batch->num_tokens;
  float* hidden = hidden_.as<float>();
  if (post_norm == nullptr) {
    pass.run_product(w.panels(), n, [&](int panel, int panels, int row0, int row1) {
      kernels_.gemm_add(gemm, row0, row1, panel, panels, hidden, stride_, shape_.residual_scale);
    });
    return;
  }
  float* branch = branch_.as<float>();
  run_matrix(pass, gemm, w, n, branch, stride_, stride_);
  pass.run(n, [&](size_t i) {
    kernels_.rmsnorm_add(branch + i * stride_, post_norm, hidden + i * stride_, shape_.hidden_size, stride_,
                         shape_.norm_eps, shape_.residual_scale);
  });
}

void Decoder::run_matrix(Pass& pass, const Gemm& gemm, const Packed& w, int rows, float* out, size_t ldo, int limit) {
  pass.run_product(w.panels(), rows, [&](int panel, int panels, int row0, int row1) {
    kernels_.gemm_store(gemm, row0, row1, panel, panels, out, ldo, limit);
  });
}

void Decoder::run_gated(Pass& pass, const uint16_t* x, const Packed& w) {
  const Gemm gemm{x, size_t(stride_), w.data, w.kpairs(), nullptr};
  const int n = pass.batch->num_tokens, runs = ceil_div(n, kRowsPerUnit);
  pass.run(size_t(w.panels() / 2) * runs, [&](size_t i) {
    const int pair = int(i / runs), row0 = int(i % runs) * kRowsPerUnit, row1 = std::min(n, row0 + kRowsPerUnit);
    kernels_.gemm_gated(gemm, row0, row1, pair, act_.as<uint16_t>(), act_stride_, shape_.activation);
  });
}

void Decoder::run_logits(Pass& pass, const int32_t* rows, int count, float* logits) {
  if (count == 0) return;
  uint16_t* picked = picked_.as<uint16_t>();
  pass.run(count, [&](size_t i) {
    kernels_.rmsnorm(hidden_.as<float>() + size_t(rows[i]) * stride_, weights_.final_norm, picked + i * stride_,
                     shape_.hidden_size, stride_, shape_.norm_eps);
  });
  const Packed& w = weights_.output();
  run_matrix(pass, {picked, size_t(stride_), w.data, w.kpairs(), nullptr}, w, count, logits, shape_.vocab_size, w.n);
  if (shape_.logit_scale == 1 && shape_.logit_softcap == 0) return;
  pass.run(count, [&](size_t i) {
    kernels_.squash(logits + i * shape_.vocab_size, shape_.vocab_size, shape_.logit_scale, shape_.logit_softcap);
  });
}

// Norms q, and k, of one token over all their heads at once.
void Decoder::norm_all_heads(int layer, int token) {
  const LayerWeights& w = weights_.layers[layer];
  const int q = shape_.q_size(), kv = shape_.kv_size();
  float* x = qkv_.as<float>() + size_t(token) * qkv_stride_;
  kernels_.rmsnorm_inplace(x, w.q_norm, q, q, shape_.norm_eps);
  kernels_.rmsnorm_inplace(x + q, w.k_norm, kv, kv, shape_.norm_eps);
}

// Norms and rotates one KV head of one token and the queries that look at it, and writes its key and value into their
// slot.
void Decoder::append(const Pass& pass, int layer, int token, int head) {
  const Batch& batch = *pass.batch;
  const KVShape& kv = pass.kv->shape();
  const int d = shape_.head_dim, group = shape_.num_heads / shape_.num_kv_heads, position = position_of_[token];
  float* x = qkv_.as<float>() + size_t(token) * qkv_stride_;
  float *queries = x + head * group * d, *key = x + shape_.q_size() + head * d, *value = key + shape_.kv_size();
  if (shape_.qk_norm == QkNorm::kHead) {
    const LayerWeights& w = weights_.layers[layer];
    for (int i = 0; i < group; i++) kernels_.rmsnorm_inplace(queries + i * d, w.q_norm, d, d, shape_.norm_eps);
    kernels_.rmsnorm_inplace(key, w.k_norm, d, d, shape_.norm_eps);
  }
  int rotary_dim = 0;
  const float* cos_sin = cos_sin_.as<float>() + size_t(token) * rotary_stride_;
  if (const int rotary = shape_.layers[layer].rotary; rotary >= 0) {
    rotary_dim = shape_.rotaries[rotary].dim();
    for (int i = 0; i < rotary; i++) cos_sin += shape_.rotaries[i].dim();
  }
  const KVPlane &keys = pass.kv->keys(layer, head), &values = pass.kv->values(layer, head);
  const auto turn = [&](float* x) {
    kernels_.rotate(x, cos_sin, rotary_dim);
    if (turns_keys(keys.codec)) kernels_.hadamard(x, d);  // query and key alike: their product stays what it was
  };
  uint16_t* q = q_.as<uint16_t>() + size_t(token) * shape_.q_size() + head * group * d;
  for (int i = 0; i < group; i++) turn(queries + i * d);
  kernels_.narrow(queries, q, group * d);
  turn(key);

  const int32_t* table =
      batch.block_tables + (size_t(kv.layer_group[layer]) * batch.num_seqs + seq_of_[token]) * batch.table_width;
  uint8_t* block = pass.kv->block(table[position / kv.block_size]);
  const size_t tile = position % kv.block_size / kTileTokens;
  const int slot = position % kTileTokens;
  kernels_.append_key(keys.codec, key, d, block + keys.codes + tile * keys.code_tile,
                      block + keys.scales + tile * keys.scale_tile, slot);
  kernels_.append_value(values.codec, value, d, block + values.codes + tile * values.code_tile,
                        block + values.scales + tile * values.scale_tile, slot);
}

// Cuts the attention of a layer into units of about equal cost: the same cut serves every layer.
void Decoder::plan_attention(const Batch& batch) {
  units_.clear();
  merges_.clear();
  const int group = shape_.num_heads / shape_.num_kv_heads;
  const auto splits_of = [&](int s) { return ceil_div(batch.seq_lens[s], kSplit); };
  const auto rows_of = [&](int s) { return (batch.query_start_loc[s + 1] - batch.query_start_loc[s]) * group; };
  size_t cost = 0;  // in row tiles times splits
  for (int s = 0; s < batch.num_seqs; s++)
    cost += size_t(shape_.num_kv_heads) * ceil_div(rows_of(s), kRowTile) * splits_of(s);
  const int share = int(std::max<size_t>(1, cost / (size_t(threads_.size()) * kUnitsPerThread)));

  const int kv_heads = shape_.num_kv_heads;
  int partials = 0;
  for (int s = 0; s < batch.num_seqs; s++) {
    const int rows = rows_of(s), splits = splits_of(s);
    // Heads that lie side by side are read in one go where one tile holds all rows: longer runs of memory come faster.
    // Half as many units do: they are of one size.
    const int most = rows <= kRowTile ? std::min(kHeadsTogether, kv_heads) : 1;
    const int together = std::clamp(splits <= share ? 2 * share / splits : share, 1, most);
    for (int head = 0; head < kv_heads; head += together) {
      const int heads = std::min(together, kv_heads - head);
      if (splits <= share) {  // several row tiles to a unit, as long as they are cheap
        const int step = std::clamp(share / splits, 1, 8) * kRowTile;
        for (int row = 0; row < rows; row += step)
          units_.push_back({s, head, heads, row, std::min(step, rows - row), 0, splits, -1, 0});
        continue;
      }
      const int step = share / heads;
      for (int row = 0; row < rows; row += kRowTile) {
        const int count = std::min(kRowTile, rows - row);
        for (int split = 0; split < splits; split += step)
          units_.push_back(
              {s, head, heads, row, count, split, std::min(splits, split + step), partials + split, splits});
        for (int h = 0; h < heads; h++) {
          merges_.push_back({s, head + h, row, count, splits, partials});
          partials += splits;
        }
      }
    }
  }
  // A sequence with one token, whose KV head is one unit's business, needs no stage of its own to append it.
  append_with_attention_ =
      merges_.empty() && batch.num_tokens == batch.num_seqs && shape_.qk_norm != QkNorm::kFull && group <= kRowTile;
  partial_states_.resize(size_t(partials) * kRowTile);
  partial_acc_.resize(size_t(partials) * kRowTile * shape_.head_dim);
}

Attention Decoder::view(const Pass& pass, int layer, int seq, int head, int heads) const {
  const Batch& batch = *pass.batch;
  const KVShape& kv = pass.kv->shape();
  const int group = shape_.num_heads / shape_.num_kv_heads, start = batch.query_start_loc[seq];
  const float cap = shape_.attention_softcap;
  constexpr float kLog2e = 1.4426950408889634f;
  return {
      .q = q_.as<uint16_t>() + size_t(start) * shape_.q_size() + size_t(head) * group * shape_.head_dim,
      .ldq = size_t(shape_.q_size()),
      .pool = pass.kv->data(),
      .block_table = batch.block_tables + (size_t(kv.layer_group[layer]) * batch.num_seqs + seq) * batch.table_width,
      .block_bytes = pass.kv->block_bytes(),
      .keys = pass.kv->keys(layer, head),
      .values = pass.kv->values(layer, head),
      .head_stride = heads > 1 ? pass.kv->keys(layer, head + 1).codes - pass.kv->keys(layer, head).codes : 0,
      .heads = heads,
      .block_tiles = kv.block_size / kTileTokens,
      .head_dim = shape_.head_dim,
      .group = group,
      .first_position = position_of_[start],
      .window = shape_.layers[layer].window,
      .score_scale = cap == 0 ? shape_.attention_scale * kLog2e : shape_.attention_scale / cap,
      .softcap_log2 = cap * kLog2e,
  };
}

void Decoder::run_attention(Pass& pass, int layer) {
  const int d = shape_.head_dim, group = shape_.num_heads / shape_.num_kv_heads;
  const auto finish = [&](int seq, int head, int row, const RowState& state, const float* acc) {
    const size_t token = pass.batch->query_start_loc[seq] + row / group;
    uint16_t* out = attended_.as<uint16_t>() + token * shape_.q_size() + (size_t(head) * group + row % group) * d;
    kernels_.finish(state, acc, d, out);
  };

  pass.run(units_.size(), [&](size_t i) {
    const AttentionUnit& unit = units_[i];
    for (int h = 0; h < (append_with_attention_ ? unit.heads : 0); h++)
      append(pass, layer, pass.batch->query_start_loc[unit.seq], unit.head + h);
    const Attention attention = view(pass, layer, unit.seq, unit.head, unit.heads);
    if (unit.partial >= 0) {
      for (int split = unit.split0; split < unit.split1; split++) {
        const size_t slot = size_t(unit.partial + split - unit.split0) * kRowTile;
        kernels_.attend(attention, unit.row0, unit.rows, split, split + 1, &partial_states_[slot],
                        &partial_acc_[slot * d], size_t(unit.head_partials) * kRowTile);
      }
      return;
    }
    RowState states[kHeadsTogether * kRowTile];
    alignas(64) float acc[kHeadsTogether * kRowTile * kMaxHeadDim];
    for (int row = unit.row0; row < unit.row0 + unit.rows; row += kRowTile) {
      const int rows = std::min(kRowTile, unit.row0 + unit.rows - row);
      kernels_.attend(attention, row, rows, 0, unit.split1, states, acc, kRowTile);
      for (int h = 0; h < unit.heads; h++)
        for (int r = 0; r < rows; r++) {
          const int at = h * kRowTile + r;
          finish(unit.seq, unit.head + h, row + r, states[at], acc + size_t(at) * d);
        }
    }
  });
  if (merges_.empty()) return;
  pass.run(merges_.size(), [&](size_t i) {
    const MergeUnit& unit = merges_[i];
    for (int r = 0; r < unit.rows; r++) {
      RowState total = partial_states_[size_t(unit.partial) * kRowTile + r];
      float* acc = &partial_acc_[(size_t(unit.partial) * kRowTile + r) * d];
      for (int split = 1; split < unit.splits; split++) {
        const size_t next = size_t(unit.partial + split) * kRowTile + r;
        kernels_.merge(total, acc, partial_states_[next], &partial_acc_[next * d], d);
      }
      finish(unit.seq, unit.head, unit.row0 + r, total, acc);
    }
  });
}

}  // namespace octavo
