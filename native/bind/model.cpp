#include "bind/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bind/arguments.h"

namespace octavo {
namespace {

using namespace nb::literals;

// The rotary embeddings, from inv_freq [rotaries, rotary_dim / 2] and their scales.
std::vector<Rotary> rotaries_of(nb::handle inv_freq_array, const std::vector<float>& scales, int head_dim) {
  const auto inv_freq = in<float, 2>("inv_freq", inv_freq_array);
  const size_t half = inv_freq.shape(1);
  check_length("rotary_scales", scales.size(), inv_freq.shape(0));
  check_between("the number of rotary frequencies", int64_t(half), 1, head_dim / 2);
  std::vector<Rotary> rotaries;
  for (size_t i = 0; i < scales.size(); i++) {
    const float* first = inv_freq.data() + i * half;
    for (size_t j = 0; j < half; j++) check(first[j] >= 0 && first[j] <= 1e3f, "inv_freq must lie between 0 and 1000");
    check_positive("a rotary scale", scales[i]);
    rotaries.push_back({std::vector<float>(first, first + half), scales[i]});
  }
  return rotaries;
}

std::vector<LayerShape> layers_of(const std::vector<int>& windows, const std::vector<int>& rotaries, size_t kinds) {
  check_between("the number of layers", int64_t(windows.size()), 1, 1 << 14);
  check_length("layer_rotaries", rotaries.size(), windows.size());
  std::vector<LayerShape> layers;
  for (size_t i = 0; i < windows.size(); i++) {
    check_between("a window", windows[i], 0, INT32_MAX);
    check_between("a layer's rotary embedding", rotaries[i], -1, int64_t(kinds) - 1);
    layers.push_back({windows[i], rotaries[i]});
  }
  return layers;
}

// The numbers of a shape that this file makes sense of one by one.
void check_shape(const DecoderShape& s) {
  check_between("vocab_size", s.vocab_size, 1, 1 << 24);
  check_between("hidden_size", s.hidden_size, 2, 1 << 20);
  check_between("intermediate_size", s.intermediate_size, 1, 1 << 22);
  check_between("num_heads", s.num_heads, 1, 1 << 14);
  check_between("num_kv_heads", s.num_kv_heads, 1, s.num_heads);
  check_between("head_dim", s.head_dim, 16, kMaxHeadDim);
  check(s.hidden_size % 2 == 0, "hidden_size must be even; got " + std::to_string(s.hidden_size));
  check(s.head_dim % 16 == 0, "head_dim must be a multiple of 16; got " + std::to_string(s.head_dim));
  check(s.num_heads % s.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
  check(s.pre_norm || s.post_norm, "a model must norm before its layers' halves, after them, or both");
  check(s.norm_eps >= 0 && s.norm_eps <= 1, "norm_eps must lie between 0 and 1; got " + std::to_string(s.norm_eps));
  check(std::isfinite(s.norm_offset), "norm_offset must be finite; got " + std::to_string(s.norm_offset));
  check(std::isfinite(s.attention_scale), "attention_scale must be finite; got " + std::to_string(s.attention_scale));
  check_positive("embed_scale", s.embed_scale);
  check_positive("residual_scale", s.residual_scale);
  check_positive("logit_scale", s.logit_scale);
  if (s.attention_softcap != 0) check_positive("attention_softcap", s.attention_softcap);
  if (s.logit_softcap != 0) check_positive("logit_softcap", s.logit_softcap);
}

void make_model(Model* self, int vocab_size, int hidden_size, int intermediate_size, int num_heads, int num_kv_heads,
                int head_dim, float norm_eps, float attention_scale, bool tie_word_embeddings,
                nb::handle inv_freq_array, const std::vector<int>& windows, const std::string& isa, int threads,
                std::optional<std::vector<int>> layer_rotaries, std::optional<std::vector<float>> rotary_scales,
                bool pre_norm, bool post_norm, float norm_offset, const std::string& qk_norm, bool qkv_bias,
                bool o_bias, const std::string& activation, float attention_softcap, float logit_softcap,
                float embed_scale, float residual_scale, float logit_scale) {
  DecoderShape shape{
      .vocab_size = vocab_size,
      .hidden_size = hidden_size,
      .intermediate_size = intermediate_size,
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .tie_word_embeddings = tie_word_embeddings,
      .pre_norm = pre_norm,
      .post_norm = post_norm,
      .qkv_bias = qkv_bias,
      .o_bias = o_bias,
      .qk_norm = named<QkNorm>("qk_norm", qk_norm,
                               {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"full", QkNorm::kFull}}),
      .activation = named<Activation>("activation", activation,
                                      {{"silu", Activation::kSilu}, {"gelu_tanh", Activation::kGeluTanh}}),
      .norm_eps = norm_eps,
      .norm_offset = norm_offset,
      .attention_scale = attention_scale,
      .attention_softcap = attention_softcap,
      .logit_softcap = logit_softcap,
      .embed_scale = embed_scale,
      .residual_scale = residual_scale,
      .logit_scale = logit_scale,
      .rotaries = {},
      .layers = {},
  };
  check_shape(shape);
  check_between("threads", threads, 1, 256);
  shape.rotaries = rotaries_of(inv_freq_array, rotary_scales.value_or(std::vector<float>{1.0f}), head_dim);
  shape.layers =
      layers_of(windows, layer_rotaries.value_or(std::vector<int>(windows.size(), 0)), shape.rotaries.size());
  const Kernels& kernels = kernels_of(isa);
  new (self) Model{};
  try {
    self->decoder = std::make_unique<Decoder>(std::move(shape), kernels, threads);
    self->scratch.resize(threads);
    for (SamplerScratch& scratch : self->scratch) scratch.reserve(vocab_size);
  } catch (...) {
    self->~Model();
    throw;
  }
}

void set_tensor(Model& self, const std::string& slot, int layer, nb::handle tensor_array) {
  const auto tensor = array_of<nb::ndarray<const uint16_t, nb::c_contig, nb::device::cpu>>(
      "tensor", "uint16 array holding bfloat16 bits", tensor_array);
  Exclusive guard(self.busy);
  std::vector<size_t> dims;
  for (size_t i = 0; i < tensor.ndim(); i++) dims.push_back(tensor.shape(i));
  nb::gil_scoped_release release;
  self.decoder->weights().set(slot, layer, tensor.data(), dims);
}

std::vector<std::pair<std::string, Array<uint8_t>>> buffers(nb::handle_t<Model> self) {
  std::vector<std::pair<std::string, Array<uint8_t>>> list;
  for (const Buffer& buffer : nb::cast<Model&>(self).decoder->weights().buffers())
    list.emplace_back(buffer.name, Array<uint8_t>(buffer.data, {buffer.bytes}, self));
  return list;
}

// A position up to here is exact in float, and so is what a rotary angle is computed from.
constexpr int kMaxSeqLen = 1 << 24;

void check_pool(const DecoderShape& shape, const KVPool& pool) {
  const KVShape& kv = pool.shape();
  check(kv.num_kv_heads == shape.num_kv_heads && kv.head_dim == shape.head_dim &&
            int(kv.layer_group.size()) == shape.num_layers(),
        "this KV pool was made for another model");
}

void check_tables(const KVPool& pool, const In<int32_t, 1>& seq_lens, const In<int32_t, 3>& tables) {
  const size_t groups = pool.shape().group_sizes.size(), seqs = seq_lens.shape(0), width = tables.shape(2);
  check_length("block_tables", tables.shape(0), groups);
  check_length("block_tables of a group", tables.shape(1), seqs);
  check_between("the width of block_tables", int64_t(width), 0, kMaxSeqLen);
  const int block_size = pool.shape().block_size;
  for (size_t s = 0; s < seqs; s++) {
    const size_t blocks = (size_t(seq_lens.data()[s]) + block_size - 1) / block_size;
    check(blocks <= width, "block_tables is too narrow for " + std::to_string(seq_lens.data()[s]) + " tokens");
    for (size_t g = 0; g < groups; g++)
      check_range("block_tables", tables.data() + (g * seqs + s) * width, blocks, 0, pool.num_blocks());
  }
}

// The blocks that this pass writes: never the null block.
void check_targets(const KVPool& pool, const Batch& batch, size_t groups) {
  const int block_size = pool.shape().block_size;
  for (int s = 0; s < batch.num_seqs; s++) {
    const int queries = batch.query_start_loc[s + 1] - batch.query_start_loc[s];
    for (size_t g = 0; g < groups; g++)
      for (int b = (batch.seq_lens[s] - queries) / block_size; b <= (batch.seq_lens[s] - 1) / block_size; b++)
        check(batch.block_tables[(g * batch.num_seqs + s) * batch.table_width + b] != 0,
              "sequence " + std::to_string(s) + " would write into the null block");
  }
}

void forward(Model& self, const KVPool& pool, nb::handle token_ids_array, nb::handle query_start_loc_array,
             nb::handle seq_lens_array, nb::handle block_tables_array, nb::handle copies_array,
             nb::handle logit_rows_array, nb::handle logits_array) {
  const auto token_ids = in<int32_t, 1>("token_ids", token_ids_array);
  const auto query_start_loc = in<int32_t, 1>("query_start_loc", query_start_loc_array);
  const auto seq_lens = in<int32_t, 1>("seq_lens", seq_lens_array);
  const auto block_tables = in<int32_t, 3>("block_tables", block_tables_array);
  const auto copies = in<int32_t, 2>("copies", copies_array);
  const auto logit_rows = in<int32_t, 1>("logit_rows", logit_rows_array);
  const auto logits = out<float, 2>("logits", logits_array);
  Exclusive guard(self.busy);
  const DecoderShape& shape = self.decoder->shape();
  const size_t n = token_ids.shape(0), r = seq_lens.shape(0), l = logit_rows.shape(0);
  check(n > 0 && n <= (1 << 20), "token_ids must hold 1 to 1048576 tokens; got " + std::to_string(n));
  check_pool(shape, pool);
  check_range("token_ids", token_ids.data(), n, 0, shape.vocab_size);
  check_starts("query_start_loc", query_start_loc, r, n);
  for (size_t s = 0; s < r; s++) {
    const int queries = query_start_loc.data()[s + 1] - query_start_loc.data()[s];
    check(queries > 0, "sequence " + std::to_string(s) + " has no tokens in this pass");
    check_between("seq_lens", seq_lens.data()[s], queries, kMaxSeqLen);
  }
  check_tables(pool, seq_lens, block_tables);
  check(copies.shape(0) == 0 || copies.shape(1) == 2, "copies must be pairs");
  check_between("the number of copies", int64_t(copies.shape(0)), 0, INT32_MAX);
  for (size_t i = 0; i < copies.shape(0); i++) {
    check_range("copies (source)", copies.data() + 2 * i, 1, 0, pool.num_blocks());
    check_range("copies (target)", copies.data() + 2 * i + 1, 1, 1, pool.num_blocks());
  }
  check_between("the number of logit_rows", int64_t(l), 0, INT32_MAX);
  check_range("logit_rows", logit_rows.data(), l, 0, int64_t(n));
  check_length("logits", logits.shape(0), l);
  check_length("a row of logits", logits.shape(1), shape.vocab_size);
  const Batch batch{
      .token_ids = token_ids.data(),
      .query_start_loc = query_start_loc.data(),
      .seq_lens = seq_lens.data(),
      .block_tables = block_tables.data(),
      .table_width = int(block_tables.shape(2)),
      .copies = copies.data(),
      .num_copies = int(copies.shape(0)),
      .logit_rows = logit_rows.data(),
      .num_logits = int(l),
      .num_tokens = int(n),
      .num_seqs = int(r),
  };
  check_targets(pool, batch, block_tables.shape(0));
  nb::gil_scoped_release release;
  self.decoder->forward(pool, batch, logits.data());
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Model> model(m, "Model");
  model
      .def("__init__", &make_model, nb::kw_only(), "vocab_size"_a, "hidden_size"_a, "intermediate_size"_a,
           "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "norm_eps"_a, "attention_scale"_a, "tie_word_embeddings"_a,
           array_arg("inv_freq"), "windows"_a, "isa"_a, "threads"_a, "layer_rotaries"_a = nb::none(),
           "rotary_scales"_a = nb::none(), "pre_norm"_a = true, "post_norm"_a = false, "norm_offset"_a = 0.0f,
           "qk_norm"_a = "none", "qkv_bias"_a = false, "o_bias"_a = false, "activation"_a = "silu",
           "attention_softcap"_a = 0.0f, "logit_softcap"_a = 0.0f, "embed_scale"_a = 1.0f, "residual_scale"_a = 1.0f,
           "logit_scale"_a = 1.0f)
      .def_prop_ro("isa", [](const Model& self) { return self.decoder->kernels().name; })
      .def_prop_ro("threads", [](const Model& self) { return int(self.scratch.size()); })
      .def_prop_ro("weight_bytes", [](const Model& self) { return self.decoder->weights().bytes(); })
      .def("set_tensor", &set_tensor, "slot"_a, "layer"_a, array_arg("tensor"))
      .def("buffers", &buffers)
      .def("forward", &forward, "pool"_a, array_arg("token_ids"), array_arg("query_start_loc"), array_arg("seq_lens"),
           array_arg("block_tables"), array_arg("copies"), array_arg("logit_rows"), array_arg("logits"));
  bind_sampling(model);
}

}  // namespace octavo
