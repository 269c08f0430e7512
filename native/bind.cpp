// The binding: every size, type and index is checked here, so that nothing below has to.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "decoder/decoder.h"
#include "probe.h"
#include "sampler/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

template <typename T, size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, size_t N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array = nb::ndarray<nb::numpy, T>;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void check(bool good, const std::string& message) {
  if (!good) fail(message);
}

std::string text_of(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

// What was given where an array was wanted.
std::string described(nb::handle value) {
  std::string text = text_of(value.type().attr("__name__"));
  if (nb::hasattr(value, "dtype")) text += " of " + text_of(value.attr("dtype"));
  if (nb::hasattr(value, "shape")) text += " with shape " + text_of(value.attr("shape"));
  return text;
}

template <typename Nd>
Nd array_of(const char* name, const std::string& wanted, nb::handle value) {
  Nd array;
  if (!nb::try_cast(value, array, false))  // never converted: a copy would be written to, or made at every step
    throw nb::type_error(
        (std::string(name) + " must be a C-contiguous " + wanted + "; got " + described(value)).c_str());
  // The compiler takes it for granted that a number lies at a multiple of its size.
  constexpr size_t kSize = sizeof(typename Nd::Scalar);
  if (reinterpret_cast<uintptr_t>(array.data()) % kSize != 0)
    throw nb::type_error((std::string(name) + " must be a C-contiguous " + wanted + ", aligned to " +
                          std::to_string(kSize) + " bytes; got " + described(value) + " that is not")
                             .c_str());
  return array;
}

template <typename T, size_t N>
std::string kind_of() {
  const std::string type = std::is_same_v<T, float>      ? "float32"
                           : std::is_same_v<T, int32_t>  ? "int32"
                           : std::is_same_v<T, uint64_t> ? "uint64"
                                                         : "?";
  return type + " array with " + std::to_string(N) + (N == 1 ? " dimension" : " dimensions");
}

// The arguments are taken as objects and converted here, so that an error can say which one is wrong.
template <typename T, size_t N>
In<T, N> in(const char* name, nb::handle value) {
  return array_of<In<T, N>>(name, kind_of<T, N>(), value);
}

template <typename T, size_t N>
Out<T, N> out(const char* name, nb::handle value) {
  return array_of<Out<T, N>>(name, "writable " + kind_of<T, N>(), value);
}

// Every value of `array` lies in [low, high).
void check_range(const char* name, const int32_t* values, size_t count, int64_t low, int64_t high) {
  for (size_t i = 0; i < count; i++)
    if (values[i] < low || values[i] >= high)
      fail(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + "; allowed are " +
           std::to_string(low) + " to " + std::to_string(high - 1));
}

void check_length(const char* name, size_t given, size_t wanted) {
  if (given != wanted)
    fail(std::string(name) + " has " + std::to_string(given) + " entries, expected " + std::to_string(wanted));
}

void check_between(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(std::string(name) + " is " + std::to_string(value) + "; allowed are " + std::to_string(low) + " to " +
         std::to_string(high));
}

// starts [n + 1] cuts a flat array of `total` entries into n slices.
void check_starts(const char* name, const In<int32_t, 1>& starts, size_t n, size_t total) {
  check_length(name, starts.shape(0), n + 1);
  const int32_t* s = starts.data();
  check(s[0] == 0 && size_t(s[n]) == total, std::string(name) + " must run from 0 to " + std::to_string(total));
  for (size_t i = 0; i < n; i++) check(s[i] <= s[i + 1], std::string(name) + " must not descend");
}

template <typename T>
Array<T> new_array(std::vector<size_t> shape) {
  size_t count = 1;
  for (size_t extent : shape) count *= extent;
  auto data = std::make_unique<T[]>(std::max<size_t>(count, 1));
  T* pointer = data.get();
  nb::capsule owner(pointer, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  (void)data.release();
  return Array<T>(pointer, shape.size(), shape.data(), owner);
}

// One caller at a time: the engine's thread. A second one is told so, rather than left to corrupt the first.
class Exclusive {
 public:
  explicit Exclusive(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire))
      throw std::runtime_error("this model is busy in another thread; one object serves one thread at a time");
  }
  ~Exclusive() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& busy_;
};

struct Model {
  std::unique_ptr<Decoder> decoder;
  std::vector<SamplerScratch> scratch;
  std::atomic<bool> busy{false};
};

struct SampleArrays {
  In<int32_t, 1> rows;
  In<float, 1> temperature;
  In<int32_t, 1> top_k;
  In<float, 1> top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  In<uint64_t, 1> seeds;
  In<int32_t, 1> choices, positions, prompt_starts, prompt_tokens, output_starts, output_tokens, bias_starts,
      bias_tokens;
  In<float, 1> bias_values;
  In<int32_t, 1> bitmask_rows;
  In<int32_t, 2> bitmask;
  In<int32_t, 1> num_top;

  void check_values(size_t num_rows, int vocab) const {
    const size_t s = rows.shape(0);
    check_range("rows", rows.data(), s, 0, int64_t(num_rows));
    for (const auto& [name, array] : {std::pair{"temperature", &temperature},
                                      {"top_p", &top_p},
                                      {"min_p", &min_p},
                                      {"repetition_penalty", &repetition_penalty},
                                      {"presence_penalty", &presence_penalty},
                                      {"frequency_penalty", &frequency_penalty}})
      check_length(name, array->shape(0), s);
    for (const auto& [name, array] : {std::pair{"top_k", &top_k},
                                      {"choices", &choices},
                                      {"positions", &positions},
                                      {"bitmask_rows", &bitmask_rows},
                                      {"num_top", &num_top}})
      check_length(name, array->shape(0), s);
    check_length("seeds", seeds.shape(0), s);
    check_starts("prompt_starts", prompt_starts, s, prompt_tokens.shape(0));
    check_starts("output_starts", output_starts, s, output_tokens.shape(0));
    check_starts("bias_starts", bias_starts, s, bias_tokens.shape(0));
    check_length("bias_values", bias_values.shape(0), bias_tokens.shape(0));
    check_range("prompt_tokens", prompt_tokens.data(), prompt_tokens.shape(0), 0, vocab);
    check_range("output_tokens", output_tokens.data(), output_tokens.shape(0), 0, vocab);
    check_range("bias_tokens", bias_tokens.data(), bias_tokens.shape(0), 0, vocab);
    check_range("top_k", top_k.data(), s, 0, int64_t(1) << 31);
    check_range("bitmask_rows", bitmask_rows.data(), s, -1, int64_t(bitmask.shape(0)));
    check_range("num_top", num_top.data(), s, -1, int64_t(vocab) + 1);
    if (bitmask.shape(0) > 0) check_length("a row of bitmask", bitmask.shape(1), (size_t(vocab) + 31) / 32);
    const auto each = [](const char* name, const In<float, 1>& array, auto&& good, const char* allowed) {
      for (size_t i = 0; i < array.shape(0); i++)
        if (!good(array.data()[i]))
          fail(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(array.data()[i]) +
               "; allowed is " + allowed);
    };
    const auto share = [](float x) { return x >= 0 && x <= 1; };
    const auto finite = [](float x) { return std::isfinite(x); };
    each("temperature", temperature, [](float x) { return x >= 0; }, "0 or more");
    each("top_p", top_p, share, "0 to 1");
    each("min_p", min_p, share, "0 to 1");
    each("repetition_penalty", repetition_penalty, [](float x) { return x > 0 && std::isfinite(x); }, "above 0");
    each("presence_penalty", presence_penalty, finite, "a finite number");
    each("frequency_penalty", frequency_penalty, finite, "a finite number");
    each("bias_values", bias_values, [](float x) { return !std::isnan(x); }, "a number");
  }

  SampleRequest request(size_t i) const {
    const auto range = [i](const In<int32_t, 1>& starts, const In<int32_t, 1>& flat) {
      return std::pair{flat.data() + starts.data()[i], flat.data() + starts.data()[i + 1]};
    };
    const auto [prompt0, prompt1] = range(prompt_starts, prompt_tokens);
    const auto [output0, output1] = range(output_starts, output_tokens);
    const auto [bias0, bias1] = range(bias_starts, bias_tokens);
    const int mask = bitmask_rows.data()[i];
    return {
        .temperature = temperature.data()[i],
        .top_k = top_k.data()[i],
        .top_p = top_p.data()[i],
        .min_p = min_p.data()[i],
        .repetition_penalty = repetition_penalty.data()[i],
        .presence_penalty = presence_penalty.data()[i],
        .frequency_penalty = frequency_penalty.data()[i],
        .seed = seeds.data()[i],
        .choice = choices.data()[i],
        .position = positions.data()[i],
        .prompt_begin = prompt0,
        .prompt_end = prompt1,
        .output_begin = output0,
        .output_end = output1,
        .bias_begin = bias0,
        .bias_end = bias1,
        .bias_values = bias_values.data() + bias_starts.data()[i],
        .bitmask = mask < 0 ? nullptr : bitmask.data() + size_t(mask) * bitmask.shape(1),
        .num_top = num_top.data()[i],
    };
  }
};

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const char* const* name = supported_isas(); *name != nullptr; name++) names.emplace_back(*name);
  return names;
}

const Kernels& kernels_of(const std::string& isa) {
  if (const Kernels* kernels = find_kernels(isa.c_str())) return *kernels;
  std::string here;
  for (const std::string& name : isa_names()) here += (here.empty() ? "" : ", ") + name;
  fail("isa is '" + isa + "'; this machine runs " + here);
}

void make_model(Model* self, int vocab_size, int hidden_size, int intermediate_size, int num_heads, int num_kv_heads,
                int head_dim, float norm_eps, float attention_scale, bool tie_word_embeddings,
                nb::handle inv_freq_array, std::vector<int> windows, const std::string& isa, int threads) {
  check_between("vocab_size", vocab_size, 1, 1 << 24);
  check_between("hidden_size", hidden_size, 2, 1 << 20);
  check_between("intermediate_size", intermediate_size, 1, 1 << 22);
  check_between("num_heads", num_heads, 1, 1 << 14);
  check_between("num_kv_heads", num_kv_heads, 1, num_heads);
  check_between("head_dim", head_dim, 16, kMaxHeadDim);
  check_between("threads", threads, 1, 256);
  check_between("the number of layers", int64_t(windows.size()), 1, 1 << 14);
  check(hidden_size % 2 == 0, "hidden_size must be even; got " + std::to_string(hidden_size));
  check(head_dim % 16 == 0, "head_dim must be a multiple of 16; got " + std::to_string(head_dim));
  check(num_heads % num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
  check(norm_eps >= 0 && norm_eps <= 1, "norm_eps must lie between 0 and 1; got " + std::to_string(norm_eps));
  check(std::isfinite(attention_scale), "attention_scale must be finite; got " + std::to_string(attention_scale));
  const auto inv_freq = in<float, 1>("inv_freq", inv_freq_array);
  check_length("inv_freq", inv_freq.shape(0), head_dim / 2);
  for (size_t i = 0; i < inv_freq.shape(0); i++)
    check(inv_freq.data()[i] >= 0 && inv_freq.data()[i] <= 1e3f, "inv_freq must lie between 0 and 1000");
  for (int window : windows) check_between("a window", window, 0, INT32_MAX);
  const Kernels& kernels = kernels_of(isa);
  DecoderShape shape{
      .vocab_size = vocab_size,
      .hidden_size = hidden_size,
      .intermediate_size = intermediate_size,
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .norm_eps = norm_eps,
      .attention_scale = attention_scale,
      .tie_word_embeddings = tie_word_embeddings,
      .inv_freq = std::vector<float>(inv_freq.data(), inv_freq.data() + inv_freq.shape(0)),
      .windows = std::move(windows),
  };
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

nb::tuple score(Model& self, nb::handle hidden_rows, nb::handle targets_array, int num_top) {
  const auto rows = in<int32_t, 1>("hidden_rows", hidden_rows);
  const auto targets = in<int32_t, 1>("targets", targets_array);
  Exclusive guard(self.busy);
  Decoder& decoder = *self.decoder;
  const int vocab = decoder.shape().vocab_size;
  const size_t count = rows.shape(0), top = size_t(std::max(num_top, 0));
  check(count == 0 || decoder.num_hidden() > 0, "hidden_rows name tokens of the last forward pass; there was none");
  check_range("hidden_rows", rows.data(), count, 0, decoder.num_hidden());
  check_length("targets", targets.shape(0), count);
  check_range("targets", targets.data(), count, 0, vocab);
  check_between("num_top", num_top, 0, vocab);
  auto logprobs = new_array<float>({count});
  auto ranks = new_array<int32_t>({count});
  auto top_ids = new_array<int32_t>({count, top});
  auto top_logprobs = new_array<float>({count, top});
  {
    nb::gil_scoped_release release;
    constexpr size_t kChunk = 64;  // rows whose logits exist at once
    std::vector<float> logits(std::min(count, kChunk) * vocab);
    for (size_t first = 0; first < count; first += kChunk) {
      const size_t chunk = std::min(kChunk, count - first);
      decoder.logits_of(rows.data() + first, int(chunk), logits.data());
      decoder.threads().run([&](int thread) {
        decoder.threads().share(0, thread, chunk, [&](size_t i) {
          const size_t out = first + i;
          const TokenScore s =
              score_token(decoder.kernels(), &logits[i * vocab], vocab, targets.data()[out], int(top),
                          top_ids.data() + out * top, top_logprobs.data() + out * top, self.scratch[thread]);
          logprobs.data()[out] = s.logprob;
          ranks.data()[out] = s.rank;
        });
      });
    }
  }
  return nb::make_tuple(logprobs, ranks, top_ids, top_logprobs);
}

nb::tuple sample(Model& self, nb::handle logits_array, nb::handle rows, nb::handle temperature, nb::handle top_k,
                 nb::handle top_p, nb::handle min_p, nb::handle repetition_penalty, nb::handle presence_penalty,
                 nb::handle frequency_penalty, nb::handle seeds, nb::handle choices, nb::handle positions,
                 nb::handle prompt_starts, nb::handle prompt_tokens, nb::handle output_starts, nb::handle output_tokens,
                 nb::handle bias_starts, nb::handle bias_tokens, nb::handle bias_values, nb::handle bitmask_rows,
                 nb::handle bitmask, nb::handle num_top) {
  const auto logits = in<float, 2>("logits", logits_array);
  const SampleArrays arrays{
      .rows = in<int32_t, 1>("rows", rows),
      .temperature = in<float, 1>("temperature", temperature),
      .top_k = in<int32_t, 1>("top_k", top_k),
      .top_p = in<float, 1>("top_p", top_p),
      .min_p = in<float, 1>("min_p", min_p),
      .repetition_penalty = in<float, 1>("repetition_penalty", repetition_penalty),
      .presence_penalty = in<float, 1>("presence_penalty", presence_penalty),
      .frequency_penalty = in<float, 1>("frequency_penalty", frequency_penalty),
      .seeds = in<uint64_t, 1>("seeds", seeds),
      .choices = in<int32_t, 1>("choices", choices),
      .positions = in<int32_t, 1>("positions", positions),
      .prompt_starts = in<int32_t, 1>("prompt_starts", prompt_starts),
      .prompt_tokens = in<int32_t, 1>("prompt_tokens", prompt_tokens),
      .output_starts = in<int32_t, 1>("output_starts", output_starts),
      .output_tokens = in<int32_t, 1>("output_tokens", output_tokens),
      .bias_starts = in<int32_t, 1>("bias_starts", bias_starts),
      .bias_tokens = in<int32_t, 1>("bias_tokens", bias_tokens),
      .bias_values = in<float, 1>("bias_values", bias_values),
      .bitmask_rows = in<int32_t, 1>("bitmask_rows", bitmask_rows),
      .bitmask = in<int32_t, 2>("bitmask", bitmask),
      .num_top = in<int32_t, 1>("num_top", num_top),
  };
  Exclusive guard(self.busy);
  Decoder& decoder = *self.decoder;
  const int vocab = decoder.shape().vocab_size;
  check_length("a row of logits", logits.shape(1), vocab);
  arrays.check_values(logits.shape(0), vocab);
  const size_t count = arrays.rows.shape(0);
  size_t top = 0;
  for (size_t i = 0; i < count; i++) top = std::max(top, size_t(std::max(arrays.num_top.data()[i], 0)));
  auto tokens = new_array<int32_t>({count});
  auto logprobs = new_array<float>({count});
  auto ranks = new_array<int32_t>({count});
  auto top_ids = new_array<int32_t>({count, top});
  auto top_logprobs = new_array<float>({count, top});
  {
    nb::gil_scoped_release release;
    std::fill_n(top_ids.data(), count * top, -1);
    std::fill_n(top_logprobs.data(), count * top, 0.0f);
    decoder.threads().run([&](int thread) {
      decoder.threads().share(0, thread, count, [&](size_t i) {
        const SampleRequest request = arrays.request(i);
        const float* row = logits.data() + size_t(arrays.rows.data()[i]) * vocab;
        const int32_t token = sample_token(decoder.kernels(), row, vocab, request, self.scratch[thread]);
        TokenScore s;
        if (request.num_top >= 0 && token >= 0)
          s = score_token(decoder.kernels(), row, vocab, token, request.num_top, top_ids.data() + i * top,
                          top_logprobs.data() + i * top, self.scratch[thread]);
        tokens.data()[i] = token;
        logprobs.data()[i] = s.logprob;
        ranks.data()[i] = s.rank;
      });
    });
  }
  return nb::make_tuple(tokens, logprobs, ranks, top_ids, top_logprobs);
}

void make_pool(KVPool* self, std::vector<int> group_sizes, std::vector<int> layer_group, std::vector<int> layer_index,
               int num_kv_heads, int head_dim, int block_size, int num_blocks) {
  check(!group_sizes.empty() && !layer_group.empty(), "a pool needs at least one group and one layer");
  check_length("layer_index", layer_index.size(), layer_group.size());
  for (int size : group_sizes) check_between("a group's size", size, 1, 1 << 14);
  for (size_t layer = 0; layer < layer_group.size(); layer++) {
    check_between("layer_group", layer_group[layer], 0, int64_t(group_sizes.size()) - 1);
    check_between("layer_index", layer_index[layer], 0, group_sizes[layer_group[layer]] - 1);
  }
  check_between("num_kv_heads", num_kv_heads, 1, 1 << 14);
  check_between("head_dim", head_dim, 16, kMaxHeadDim);
  check_between("block_size", block_size, kTileTokens, 1024);
  check(head_dim % 16 == 0 && block_size % kTileTokens == 0, "head_dim and block_size must be multiples of 16");
  check_between("num_blocks", num_blocks, 2, INT32_MAX);
  new (self) KVPool(
      {std::move(group_sizes), std::move(layer_group), std::move(layer_index), num_kv_heads, head_dim, block_size},
      num_blocks);
}

Array<uint8_t> pool_block(nb::handle_t<KVPool> self, int id) {
  const KVPool& pool = nb::cast<KVPool&>(self);
  check_between("block_id", id, 0, pool.num_blocks() - 1);
  return Array<uint8_t>(pool.block(id), {pool.block_bytes()}, self);
}

nb::tuple measure_roof_of(const std::string& isa, int threads, int megabytes) {
  check_between("threads", threads, 1, 256);
  check_between("megabytes", megabytes, 1, 1 << 20);
  const Kernels& kernels = kernels_of(isa);
  Roof roof;
  {
    nb::gil_scoped_release release;
    roof = measure_roof(kernels, threads, size_t(megabytes) << 20);
  }
  return nb::make_tuple(roof.bytes_per_second, roof.flops_per_second);
}

}  // namespace

NB_MODULE(_native, m) {
  const auto array = [](const char* name) { return nb::arg(name).none(); };  // so that None, too, is refused by name
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("SOURCE_HASH") = OCTAVO_SOURCE_HASH;
  m.def("supported_isas", &isa_names);
  m.def("available_threads", &available_threads);
  m.def("measure_roof", &measure_roof_of, "isa"_a, "threads"_a, "megabytes"_a = 256);

  nb::class_<KVPool>(m, "KVPool")
      .def("__init__", &make_pool, nb::kw_only(), "group_sizes"_a, "layer_group"_a, "layer_index"_a, "num_kv_heads"_a,
           "head_dim"_a, "block_size"_a, "num_blocks"_a)
      .def_prop_ro("block_bytes", &KVPool::block_bytes)
      .def_prop_ro("nbytes", &KVPool::bytes)
      .def_prop_ro("num_blocks", &KVPool::num_blocks)
      .def("block", &pool_block, "block_id"_a);

  nb::class_<Model>(m, "Model")
      .def("__init__", &make_model, nb::kw_only(), "vocab_size"_a, "hidden_size"_a, "intermediate_size"_a,
           "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "norm_eps"_a, "attention_scale"_a, "tie_word_embeddings"_a,
           array("inv_freq"), "windows"_a, "isa"_a, "threads"_a)
      .def_prop_ro("isa", [](const Model& self) { return self.decoder->kernels().name; })
      .def_prop_ro("threads", [](const Model& self) { return int(self.scratch.size()); })
      .def_prop_ro("weight_bytes", [](const Model& self) { return self.decoder->weights().bytes(); })
      .def("set_tensor", &set_tensor, "slot"_a, "layer"_a, array("tensor"))
      .def("buffers", &buffers)
      .def("forward", &forward, "pool"_a, array("token_ids"), array("query_start_loc"), array("seq_lens"),
           array("block_tables"), array("copies"), array("logit_rows"), array("logits"))
      .def("score", &score, array("hidden_rows"), array("targets"), "num_top"_a)
      .def("sample", &sample, array("logits"), array("rows"), array("temperature"), array("top_k"), array("top_p"),
           array("min_p"), array("repetition_penalty"), array("presence_penalty"), array("frequency_penalty"),
           array("seeds"), array("choices"), array("positions"), array("prompt_starts"), array("prompt_tokens"),
           array("output_starts"), array("output_tokens"), array("bias_starts"), array("bias_tokens"),
           array("bias_values"), array("bitmask_rows"), array("bitmask"), array("num_top"));
}

}  // namespace octavo
