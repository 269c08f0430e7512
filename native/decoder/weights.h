// Packed weights: bf16 panels of 32 outputs with k-pairs interleaved, [N / 32][K / 2][32][2].
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "decoder/shape.h"
#include "kernels/table.h"
#include "memory.h"

namespace octavo {

// A matrix [n, k] in panels; rows beyond n and the odd column beyond k are zero.
struct Packed {
  int n = 0, k = 0;
  uint16_t* data = nullptr;

  int panels() const { return (n + kPanel - 1) / kPanel; }
  int kpairs() const { return (k + 1) / 2; }
  size_t bytes() const { return sizeof(uint32_t) * kPanel * panels() * size_t(kpairs()); }
};

// Vectors are rounded up to a panel; one that the model does not have is null.
struct LayerWeights {
  float *attn_norm = nullptr, *attn_post_norm = nullptr, *mlp_norm = nullptr, *mlp_post_norm = nullptr;  // [hidden]
  float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim], or [q_size] and [kv_size]
  float* qkv_bias = nullptr;                   // q, then k, then v
  float* o_bias = nullptr;                     // [hidden]
  Packed qkv;                                  // rows of q, then k, then v
  Packed o;
  Packed gate_up;  // panel 2i holds 32 gates, panel 2i + 1 their ups
  Packed down;
};

struct Buffer {
  std::string name;
  uint8_t* data;
  size_t bytes;
};

class Weights {
 public:
  explicit Weights(const DecoderShape& shape);

  // Packs a row-major bf16 tensor into its slot. Throws std::invalid_argument if there is no such slot or the shape
  // is not its own.
  void set(const std::string& slot, int layer, const uint16_t* tensor, const std::vector<size_t>& dims);
  // Every buffer by name, in a fixed order.
  const std::vector<Buffer>& buffers() const { return buffers_; }
  size_t bytes() const { return memory_.bytes(); }

  // The matrix that logits are computed with: the embedding itself when tied.
  const Packed& output() const { return tied_ ? embed_packed : lm_head; }
  // One token's embedding, times embed_scale, as fp32 [hidden].
  void embed(int token, float* out) const;

  std::vector<LayerWeights> layers;
  float* final_norm = nullptr;
  uint16_t* embed_rows = nullptr;  // untied: bf16 [vocab, hidden], as rows are all that is read
  Packed embed_packed;             // tied: panels, which serve rows and logits alike
  Packed lm_head;                  // untied only

 private:
  bool set_of_model(const std::string& slot, const uint16_t* tensor, const std::vector<size_t>& dims);
  bool set_of_layer(const std::string& slot, LayerWeights& w, const uint16_t* tensor, const std::vector<size_t>& dims);

  DecoderShape shape_;
  bool tied_;
  std::vector<Buffer> buffers_;
  // Everything lies in one mapping: in huge pages, so that a stream of weights does not stop at every small one.
  Memory memory_;
};

}  // namespace octavo
