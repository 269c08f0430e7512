// From logits to tokens: filters, penalties, seeded draws, and log-probabilities.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// How one token is drawn from one row of logits. Empty ranges and neutral values switch a step off.
struct SampleRequest {
  float temperature;  // 0: greedy
  int top_k;          // 0: all
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  int32_t choice, position;
  const int32_t *prompt_begin, *prompt_end;  // tokens that the repetition penalty counts beside the output
  const int32_t *output_begin, *output_end;  // tokens that every penalty counts
  const int32_t *bias_begin, *bias_end;      // tokens with a bias
  const float* bias_values;
  const int32_t* bitmask;  // allowed tokens, or null
  int num_top;             // alternatives whose log-probabilities are wanted; -1 for none at all
};

// Log-probability of a token under the model's own logits, its rank from 1, and the best tokens. Ties: lower id first.
struct TokenScore {
  float logprob = 0;
  int32_t rank = 0;
};

// Scratch of one thread, reserved once: a worker thread must not allocate, for it cannot report that it failed to.
struct SamplerScratch {
  std::vector<float> logits, probs, maxima;
  std::vector<int32_t> order;
  std::vector<uint8_t> seen;

  void reserve(int vocab);
};

TokenScore score_token(const Kernels& kernels, const float* logits, int vocab, int32_t token, int num_top,
                       int32_t* top_ids, float* top_logprobs, SamplerScratch& scratch);

// The drawn token, or -1 if every token is banned.
int32_t sample_token(const Kernels& kernels, const float* logits, int vocab, const SampleRequest& request,
                     SamplerScratch& scratch);

}  // namespace octavo
