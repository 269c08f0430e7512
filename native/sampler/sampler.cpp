#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace octavo {
namespace {

constexpr int kPiece = 128;  // of a row, by whose maxima the best tokens are found
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

// The k best tokens with any probability, into `order`. Every piece of the row holds its own maximum, so at least k
// tokens reach the k-th best of those maxima, and few others do: only they are looked at closer.
void select_top_k(const Kernels& kernels, const float* logits, const float* probs, int vocab, size_t k,
                  SamplerScratch& scratch) {
  float floor = kBanned;
  if (k <= size_t(vocab / kPiece)) {
    std::vector<float>& maxima = scratch.maxima;
    maxima.clear();
    for (int i = 0; i + kPiece <= vocab; i += kPiece) maxima.push_back(kernels.row_max(logits + i, kPiece));
    std::nth_element(maxima.begin(), maxima.begin() + k - 1, maxima.end(), std::greater<>());
    floor = maxima[k - 1];
  }
  std::vector<int32_t>& order = scratch.order;
  order.clear();
  for (int i = 0; i < vocab; i++)
    if (logits[i] >= floor && probs[i] > 0) order.push_back(i);
  if (order.size() <= k) return;
  std::nth_element(order.begin(), order.begin() + k, order.end(), Better{logits});
  order.resize(k);
}

// The fewest tokens, best first, whose probabilities reach `wanted` stay in `order`. Halving finds where they end in
// time linear in their number; nothing is sorted.
void select_nucleus(const float* logits, const float* probs, double wanted, std::vector<int32_t>& order) {
  size_t low = 0, high = order.size();  // the best `low` tokens do not reach it, and the end is at `high` at the latest
  double kept = 0;                      // by the best `low` tokens
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(order.begin() + low, order.begin() + middle, order.begin() + high, Better{logits});
    double mass = 0;
    for (size_t i = low; i < middle; i++) mass += probs[order[i]];
    if (kept + mass >= wanted) {
      high = middle;
    } else {
      kept += mass;
      low = middle;
    }
  }
  order.resize(high);
}

// Filters in transformers' order: top-k, then top-p over what is left, then min-p against the best. Probabilities are
// relative to the best, which has 1, until they are drawn from. As min-p looks at the best alone and drops the worst,
// it may go before top-p, whose total is taken without it.
int32_t draw_filtered(const Kernels& kernels, const SampleRequest& r, const float* logits, const float* probs,
                      int vocab, double total, SamplerScratch& scratch) {
  std::vector<int32_t>& order = scratch.order;
  if (r.top_k > 0 && r.top_k < vocab) {
    select_top_k(kernels, logits, probs, vocab, r.top_k, scratch);
    total = 0;
    for (int32_t token : order) total += probs[token];
    std::erase_if(order, [&](int32_t token) { return probs[token] < r.min_p; });
  } else {
    // What lies below an even share of all that top-p leaves out is left out, for together it is less than that.
    const double spare = r.top_p < 1.0f ? (1 - double(r.top_p)) * total / vocab * (1 - 1e-6) : 0;
    order.clear();
    for (int i = 0; i < vocab; i++)
      if (probs[i] > 0 && probs[i] >= r.min_p && probs[i] >= spare) order.push_back(i);
  }
  if (r.top_p < 1.0f) select_nucleus(logits, probs, double(r.top_p) * total, order);

  // Back to the order of ids: the draw must not depend on how a library's selection moves things about.
  scratch.seen.assign(vocab, 0);
  for (int32_t token : order) scratch.seen[token] = 1;
  order.clear();
  double kept = 0;
  for (int i = 0; i < vocab; i++)
    if (scratch.seen[i]) order.push_back(i), kept += probs[i];
  return draw(uniform(r.seed, r.choice, r.position) * kept, order.size(),
              [&](size_t i) { return std::pair<int32_t, double>(order[i], probs[order[i]]); });
}

}  // namespace

void SamplerScratch::reserve(int vocab) {
  logits.reserve(vocab);
  probs.reserve(vocab);
  order.reserve(vocab);
  maxima.reserve(vocab / kPiece + 1);
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
    return draw_filtered(kernels, r, logits, probs, vocab, total, scratch);
  return draw(uniform(r.seed, r.choice, r.position) * total, vocab,
              [&](size_t i) { return std::pair<int32_t, double>(int32_t(i), probs[i]); });
}

}  // namespace octavo
