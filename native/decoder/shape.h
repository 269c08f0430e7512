// What a model computes: ModelSpec, as the native core has it.
#pragma once
#include <vector>

#include "kernels/table.h"

namespace octavo {

// One way to rotate queries and keys: the first 2 * inv_freq.size() elements of a head, cos and sin times `scale`.
struct Rotary {
  std::vector<float> inv_freq;
  float scale;

  int dim() const { return 2 * int(inv_freq.size()); }
};

struct LayerShape {
  int window;  // keys a query sees, itself included; 0 for all
  int rotary;  // which of the model's rotary embeddings; -1 for none
};

enum class QkNorm { kNone, kHead, kFull };  // over each head of q and k, or over all heads at once

// The words are those of ModelSpec.
struct DecoderShape {
  int vocab_size, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  bool tie_word_embeddings, pre_norm, post_norm, qkv_bias, o_bias;
  QkNorm qk_norm;
  Activation activation;
  float norm_eps, norm_offset, attention_scale, attention_softcap, logit_softcap;
  float embed_scale, residual_scale, logit_scale;
  std::vector<Rotary> rotaries;
  std::vector<LayerShape> layers;

  int num_layers() const { return int(layers.size()); }
  int q_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
};

}  // namespace octavo
