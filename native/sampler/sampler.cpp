#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace octavo {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// Higher logit first; of equals the lower id. A NaN counts as banned: sorting needs an order that is total.
struct Better {
  const float* logits;
  float key(int32_t token) const { return logits[token] == logits[token] ? logits[token] : kBanned; }
  bool operator()(int32_t a, int32_t b) const { return key(a) > key(b) || (key(a) == key(b) && a < b); }
};

// A counter-based generator (SplitMix64's finaliser, Steele et al. 2014, over the three counters in turn): the draw
// depends on nothing but these numbers, so batching and preemption cannot change it.
double uniform(uint64_t seed, uint32_t choice, uint32_t position) {
  const auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return double(mix(mix(mix(seed) ^ choice) ^ position) >> 11) * 0x1p-53;
}

int32_t argmax(const Kernels& kernels, const float* logits, int vocab) {
  const float best = kernels.row_max(logits, vocab);
  if (best == kBanned) return -1;
  for (int i = 0; i < vocab; i++)
    if (logits[i] == best) return i;
  return -1;  // only NaN: no token can be chosen
}

bool changes_logits(const SampleRequest& r) {
  return r.repetition_penalty != 1.0f || r.presence_penalty != 0.0f || r.frequency_penalty != 0.0f ||
         r.bias_begin != r.bias_end || r.bitmask != nullptr;
}

// Penalties as OpenAI (presence, frequency: output only) and CTRL (repetition: prompt and output) define them.
void apply_penalties(float* logits, int vocab, const SampleRequest& r, std::vector<uint8_t>& seen) {
  if (r.repetition_penalty != 1.0f) {
    seen.assign(vocab, 0);
    const auto repeat = [&](int32_t token) {
      if (seen[token]) return;
      seen[token] = 1;
      float& x = logits[token];
      x = x > 0 ? x / r.repetition_penalty : x * r.repetition_penalty;
    };
    std::for_each(r.prompt_begin, r.prompt_end, repeat);
    std::for_each(r.output_begin, r.output_end, repeat);
  }
  if (r.frequency_penalty != 0.0f)
    for (const int32_t* t = r.output_begin; t != r.output_end; t++) logits[*t] -= r.frequency_penalty;
  if (r.presence_penalty != 0.0f) {
    seen.assign(vocab, 0);
    for (const int32_t* t = r.output_begin; t != r.output_end; t++) {
      if (!seen[*t]) logits[*t] -= r.presence_penalty;
      seen[*t] = 1;
    }
  }
}

void apply_bias_and_mask(float* logits, int vocab, const SampleRequest& r) {
  for (const int32_t* t = r.bias_begin; t != r.bias_end; t++) logits[*t] += r.bias_values[t - r.bias_begin];
  if (r.bitmask == nullptr) return;
  for (int i = 0; i < vocab; i++)
    if (!(uint32_t(r.bitmask[i / 32]) >> (i % 32) & 1u)) logits[i] = kBanned;
}

// Walks tokens in the given order until the draw is reached. The last token with any probability catches rounding.
template <typename Next>
int32_t draw(double target, size_t count, Next&& next) {
  double sum = 0;
  int32_t last = -1;
  for (size_t i = 0; i < count; i++) {
    const auto [token, weight] = next(i);
    if (weight <= 0) continue;
    last = token;
    sum += weight;
    if (sum > target) return token;
  }
  return last;
}

// Filters in transformers' order: top-k, then top-p over what is left, then min-p against the best. Candidates are
// taken from the best down, and the best has probability 1 here: probabilities are relative to it until they are drawn
// from.
int32_t draw_filtered(const SampleRequest& r, const float* logits, const float* probs, int vocab, double total,
                      std::vector<int32_t>& order) {
  order.resize(vocab);
  std::iota(order.begin(), order.end(), 0);
  const Better better{logits};
  size_t count = vocab;
  if (r.top_k > 0 && r.top_k < vocab) {
    std::nth_element(order.begin(), order.begin() + r.top_k - 1, order.end(), better);
    count = r.top_k;
    std::sort(order.begin(), order.begin() + count, better);
    total = 0;
    for (size_t i = 0; i < count; i++) total += probs[order[i]];
  }
  double kept = 0;
  size_t keep = 0, sorted = r.top_k > 0 && r.top_k < vocab ? count : 0;
  while (keep < count) {
    if (keep == sorted) {  // sort a little more: the nucleus is nearly always small
      sorted = std::min(count, std::max<size_t>(64, sorted * 4));
      std::partial_sort(order.begin() + keep, order.begin() + sorted, order.end(), better);
    }
    const float p = probs[order[keep]];
    if (keep > 0 && (p < r.min_p || kept >= double(r.top_p) * total)) break;
    kept += p;
    keep++;
  }
  return draw(uniform(r.seed, r.choice, r.position) * kept, keep,
              [&](size_t i) { return std::pair<int32_t, double>(order[i], probs[order[i]]); });
}

}  // namespace

void SamplerScratch::reserve(int vocab) {
  logits.reserve(vocab);
  probs.reserve(vocab);
  order.reserve(vocab);
  seen.reserve(vocab);
}

TokenScore score_token(const Kernels& kernels, const float* logits, int vocab, int32_t token, int num_top,
                       int32_t* top_ids, float* top_logprobs, SamplerScratch& scratch) {
  const float best = kernels.row_max(logits, vocab);
  const float log_sum = std::log(kernels.sum_exp(logits, vocab, best, 1.0f));
  const Better better{logits};
  TokenScore score{.logprob = logits[token] - best - log_sum, .rank = 1};
  for (int i = 0; i < vocab; i++) score.rank += better(i, token);
  if (num_top <= 0) return score;
  scratch.order.resize(vocab);
  std::iota(scratch.order.begin(), scratch.order.end(), 0);
  std::partial_sort(scratch.order.begin(), scratch.order.begin() + num_top, scratch.order.end(), better);
  for (int i = 0; i < num_top; i++) {
    top_ids[i] = scratch.order[i];
    top_logprobs[i] = logits[top_ids[i]] - best - log_sum;
  }
  return score;
}

int32_t sample_token(const Kernels& kernels, const float* logits, int vocab, const SampleRequest& r,
                     SamplerScratch& scratch) {
  if (changes_logits(r)) {
    scratch.logits.assign(logits, logits + vocab);
    apply_penalties(scratch.logits.data(), vocab, r, scratch.seen);
    apply_bias_and_mask(scratch.logits.data(), vocab, r);
    logits = scratch.logits.data();
  }
  if (r.temperature == 0.0f || r.top_k == 1) return argmax(kernels, logits, vocab);
  const float best = kernels.row_max(logits, vocab), scale = 1.0f / r.temperature;
  // A temperature so small that its reciprocal (times log2(e), in exp_into) overflows, or an infinite logit, leaves
  // one candidate: the best.
  if (!std::isfinite(best) || !std::isfinite(2 * scale)) return argmax(kernels, logits, vocab);
  scratch.probs.resize(vocab);
  kernels.exp_into(logits, vocab, best, scale, scratch.probs.data());
  const float* probs = scratch.probs.data();
  double total = 0;
  for (int i = 0; i < vocab; i++) total += probs[i];
  if ((r.top_k > 0 && r.top_k < vocab) || r.top_p < 1.0f || r.min_p > 0.0f)
    return draw_filtered(r, logits, probs, vocab, total, scratch.order);
  return draw(uniform(r.seed, r.choice, r.position) * total, vocab,
              [&](size_t i) { return std::pair<int32_t, double>(int32_t(i), probs[i]); });
}

}  // namespace octavo
