// KV formats: how the keys, or the values, of one layer are written down, and how many bytes that takes.
#pragma once
#include <cstddef>

#include "kernels/table.h"

namespace octavo {

// Bytes of the codes of one tile: kTileTokens vectors of head_dim elements.
inline size_t code_bytes(KVCodec codec, int head_dim) {
  const size_t elements = size_t(kTileTokens) * head_dim;
  switch (codec) {
    case KVCodec::kBf16: return 2 * elements;
    case KVCodec::kInt8:
    case KVCodec::kFp8: return elements;
    case KVCodec::kInt4: return elements / 2;
  }
  return 0;
}

// Bytes of their scales, float16: one for a vector; for int4 a scale and a minimum for 32 elements.
inline size_t scale_bytes(KVCodec codec, int head_dim) {
  switch (codec) {
    case KVCodec::kBf16: return 0;
    case KVCodec::kInt8:
    case KVCodec::kFp8: return 2 * kTileTokens;
    case KVCodec::kInt4: return size_t(kTileTokens) * (head_dim / kInt4Group) * 4;
  }
  return 0;
}

// Whether keys are turned by a Hadamard transform, and queries with them: it spreads what single large elements cost.
inline bool turns_keys(KVCodec codec) { return codec != KVCodec::kBf16; }

}  // namespace octavo
