#include "sampler/sampler.h"

#include <cmath>
#include <utility>

#include "bind/arguments.h"
#include "bind/model.h"

namespace octavo {
namespace {

using namespace nb::literals;

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

}  // namespace

void bind_sampling(nb::class_<Model>& model) {
  model.def("score", &score, array_arg("hidden_rows"), array_arg("targets"), "num_top"_a)
      .def("sample", &sample, array_arg("logits"), array_arg("rows"), array_arg("temperature"), array_arg("top_k"),
           array_arg("top_p"), array_arg("min_p"), array_arg("repetition_penalty"), array_arg("presence_penalty"),
           array_arg("frequency_penalty"), array_arg("seeds"), array_arg("choices"), array_arg("positions"),
           array_arg("prompt_starts"), array_arg("prompt_tokens"), array_arg("output_starts"),
           array_arg("output_tokens"), array_arg("bias_starts"), array_arg("bias_tokens"), array_arg("bias_values"),
           array_arg("bitmask_rows"), array_arg("bitmask"), array_arg("num_top"));
}

}  // namespace octavo
