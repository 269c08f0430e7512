#include "decoder/weights.h"

#include <cstring>
#include <stdexcept>

#include "bf16.h"

namespace octavo {
namespace {

constexpr size_t kAlignment = 64;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Rows of `source` [rows, k] into the panel rows first, first + 1, ...
void pack_rows(Packed& target, const uint16_t* source, int rows, int first) {
  const int k = target.k, kpairs = target.kpairs();
  uint32_t* out = reinterpret_cast<uint32_t*>(target.data);
  // Short runs of k for all rows of a panel keep the strided writes within the cache.
  constexpr int kRun = 64;
  for (int row0 = 0; row0 < rows; row0 += kPanel) {
    const int row1 = row0 + kPanel < rows ? row0 + kPanel : rows;
    for (int kp0 = 0; kp0 < kpairs; kp0 += kRun) {
      const int kp1 = kp0 + kRun < kpairs ? kp0 + kRun : kpairs;
      for (int row = row0; row < row1; row++) {
        const size_t n = size_t(first) + row;
        uint32_t* base = out + n / kPanel * kpairs * kPanel + n % kPanel;
        const uint16_t* x = source + size_t(row) * k;
        for (int kp = kp0; kp < kp1; kp++) {
          const uint32_t even = x[2 * kp], odd = 2 * kp + 1 < k ? x[2 * kp + 1] : 0;
          base[size_t(kp) * kPanel] = even | odd << 16;
        }
      }
    }
  }
}

// Rows go to every other panel: gates to the even ones (which = 0), ups to the odd ones.
void pack_alternate(Packed& target, const uint16_t* source, int rows, int which) {
  for (int row = 0; row < rows; row += kPanel) {
    const int count = rows - row < kPanel ? rows - row : kPanel;
    pack_rows(target, source + size_t(row) * target.k, count, 2 * row + which * kPanel);
  }
}

// bf16 to fp32, plus `offset`.
void widen(const uint16_t* tensor, size_t n, float offset, float* out) {
  for (size_t i = 0; i < n; i++) out[i] = from_bf16(tensor[i]) + offset;
}

std::string shape_text(const std::vector<size_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); i++) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

void expect(const std::string& slot, const std::vector<size_t>& dims, const std::vector<size_t>& wanted) {
  if (dims != wanted)
    throw std::invalid_argument("tensor for " + slot + " has shape " + shape_text(dims) + ", expected " +
                                shape_text(wanted));
}

}  // namespace

Weights::Weights(const DecoderShape& s) : shape_(s), tied_(s.tie_word_embeddings) {
  // Sizes first, then one mapping, then every pointer to its place in it.
  std::vector<std::pair<void*, size_t>> places;  // (address of a pointer, offset)
  size_t total = 0;
  const auto place = [&](std::string name, auto*& pointer, size_t bytes) {
    buffers_.push_back({std::move(name), nullptr, bytes});
    places.emplace_back(&pointer, total);
    total += round_up(bytes, kAlignment);
  };
  const auto vector = [&](std::string name, float*& pointer, int n) {
    place(std::move(name), pointer, sizeof(float) * round_up(n, kPanel));
  };
  const auto matrix = [&](std::string name, Packed& packed, int n, int k) {
    packed = {.n = n, .k = k};
    place(std::move(name), packed.data, packed.bytes());
  };

  if (tied_) {
    matrix("embed", embed_packed, s.vocab_size, s.hidden_size);
  } else {
    place("embed", embed_rows, sizeof(uint16_t) * s.vocab_size * size_t(s.hidden_size));
    matrix("lm_head", lm_head, s.vocab_size, s.hidden_size);
  }
  vector("final_norm", final_norm, s.hidden_size);
  layers.resize(s.num_layers());
  for (int i = 0; i < s.num_layers(); i++) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    LayerWeights& layer = layers[i];
    const int qkv_size = s.q_size() + 2 * s.kv_size();
    if (s.pre_norm) vector(prefix + "attn_norm", layer.attn_norm, s.hidden_size);
    matrix(prefix + "qkv", layer.qkv, qkv_size, s.hidden_size);
    if (s.qkv_bias) vector(prefix + "qkv_bias", layer.qkv_bias, qkv_size);
    if (s.qk_norm != QkNorm::kNone) {
      vector(prefix + "q_norm", layer.q_norm, s.qk_norm == QkNorm::kHead ? s.head_dim : s.q_size());
      vector(prefix + "k_norm", layer.k_norm, s.qk_norm == QkNorm::kHead ? s.head_dim : s.kv_size());
    }
    matrix(prefix + "o", layer.o, s.hidden_size, s.q_size());
    if (s.o_bias) vector(prefix + "o_bias", layer.o_bias, s.hidden_size);
    if (s.post_norm) vector(prefix + "attn_post_norm", layer.attn_post_norm, s.hidden_size);
    if (s.pre_norm) vector(prefix + "mlp_norm", layer.mlp_norm, s.hidden_size);
    matrix(prefix + "gate_up", layer.gate_up, 2 * int(round_up(s.intermediate_size, kPanel)), s.hidden_size);
    matrix(prefix + "down", layer.down, s.hidden_size, s.intermediate_size);
    if (s.post_norm) vector(prefix + "mlp_post_norm", layer.mlp_post_norm, s.hidden_size);
  }

  memory_ = Memory(total);
  for (size_t i = 0; i < places.size(); i++) {
    buffers_[i].data = memory_.data() + places[i].second;
    std::memcpy(places[i].first, &buffers_[i].data, sizeof(void*));
  }
}

void Weights::set(const std::string& slot, int layer, const uint16_t* tensor, const std::vector<size_t>& dims) {
  const bool known = layer == -1
                         ? set_of_model(slot, tensor, dims)
                         : layer >= 0 && layer < int(layers.size()) && set_of_layer(slot, layers[layer], tensor, dims);
  if (!known) throw std::invalid_argument("there is no slot '" + slot + "' at layer " + std::to_string(layer));
}

bool Weights::set_of_model(const std::string& slot, const uint16_t* tensor, const std::vector<size_t>& dims) {
  const size_t hidden = shape_.hidden_size, vocab = shape_.vocab_size;
  if (slot == "final_norm") {
    expect(slot, dims, {hidden});
    widen(tensor, hidden, shape_.norm_offset, final_norm);
  } else if (slot == "embed") {
    expect(slot, dims, {vocab, hidden});
    if (tied_)
      pack_rows(embed_packed, tensor, int(vocab), 0);
    else
      std::memcpy(embed_rows, tensor, sizeof(uint16_t) * vocab * hidden);
  } else if (slot == "lm_head" && !tied_) {
    expect(slot, dims, {vocab, hidden});
    pack_rows(lm_head, tensor, int(vocab), 0);
  } else {
    return false;
  }
  return true;
}

bool Weights::set_of_layer(const std::string& slot, LayerWeights& w, const uint16_t* tensor,
                           const std::vector<size_t>& dims) {
  const size_t hidden = shape_.hidden_size, gates = shape_.intermediate_size;
  const size_t q = shape_.q_size(), kv = shape_.kv_size(), head = shape_.head_dim;
  const bool per_head = shape_.qk_norm == QkNorm::kHead;
  const auto rows = [&](Packed& target, size_t n, size_t first) {
    expect(slot, dims, {n, size_t(target.k)});
    pack_rows(target, tensor, int(n), int(first));
    return true;
  };
  const auto gated = [&](int which) {
    expect(slot, dims, {gates, hidden});
    pack_alternate(w.gate_up, tensor, int(gates), which);
    return true;
  };
  // False if the model has no such vector.
  const auto vector = [&](float* target, size_t n, float offset, size_t first = 0) {
    if (target == nullptr) return false;
    expect(slot, dims, {n});
    widen(tensor, n, offset, target + first);
    return true;
  };
  if (slot == "q") return rows(w.qkv, q, 0);
  if (slot == "k") return rows(w.qkv, kv, q);
  if (slot == "v") return rows(w.qkv, kv, q + kv);
  if (slot == "o") return rows(w.o, hidden, 0);
  if (slot == "gate") return gated(0);
  if (slot == "up") return gated(1);
  if (slot == "down") return rows(w.down, hidden, 0);
  if (slot == "attn_norm") return vector(w.attn_norm, hidden, shape_.norm_offset);
  if (slot == "attn_post_norm") return vector(w.attn_post_norm, hidden, shape_.norm_offset);
  if (slot == "mlp_norm") return vector(w.mlp_norm, hidden, shape_.norm_offset);
  if (slot == "mlp_post_norm") return vector(w.mlp_post_norm, hidden, shape_.norm_offset);
  if (slot == "q_norm") return vector(w.q_norm, per_head ? head : q, shape_.norm_offset);
  if (slot == "k_norm") return vector(w.k_norm, per_head ? head : kv, shape_.norm_offset);
  if (slot == "q_bias") return vector(w.qkv_bias, q, 0);
  if (slot == "k_bias") return vector(w.qkv_bias, kv, 0, q);
  if (slot == "v_bias") return vector(w.qkv_bias, kv, 0, q + kv);
  if (slot == "o_bias") return vector(w.o_bias, hidden, 0);
  return false;
}

void Weights::embed(int token, float* out) const {
  const int hidden = shape_.hidden_size;
  const float scale = shape_.embed_scale;
  if (!tied_) {
    const uint16_t* row = embed_rows + size_t(token) * hidden;
    for (int i = 0; i < hidden; i++) out[i] = from_bf16(row[i]) * scale;
    return;
  }
  const int kpairs = embed_packed.kpairs();
  const uint32_t* base =
      reinterpret_cast<const uint32_t*>(embed_packed.data) + size_t(token / kPanel) * kpairs * kPanel + token % kPanel;
  for (int kp = 0; kp < kpairs; kp++) {
    const uint32_t pair = base[size_t(kp) * kPanel];
    out[2 * kp] = from_bf16(uint16_t(pair)) * scale;
    out[2 * kp + 1] = from_bf16(uint16_t(pair >> 16)) * scale;
  }
}

}  // namespace octavo
