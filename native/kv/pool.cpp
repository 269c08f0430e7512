#include "kv/pool.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace octavo {
namespace {
constexpr size_t kAlignment = 64;
}

KVPool::KVPool(KVShape shape, int num_blocks) : shape_(std::move(shape)), num_blocks_(num_blocks) {
  planes_.resize(shape_.layer_group.size() * shape_.num_kv_heads * 2);
  for (size_t group = 0; group < shape_.group_sizes.size(); group++) {
    const size_t payload = lay_out(int(group));
    block_bytes_ = std::max(block_bytes_, (payload + kAlignment - 1) / kAlignment * kAlignment);
  }
  size_t bytes;
  if (__builtin_mul_overflow(block_bytes_, size_t(num_blocks_), &bytes)) throw std::bad_alloc();
  memory_ = Memory(bytes);
}

// Gives every plane of one group its place in a block, and returns where the last one ends.
size_t KVPool::lay_out(int group) {
  std::vector<int> layers(shape_.group_sizes[group], -1);
  for (size_t layer = 0; layer < shape_.layer_group.size(); layer++)
    if (shape_.layer_group[layer] == group) layers[shape_.layer_index[layer]] = int(layer);
  const size_t tiles = shape_.block_size / kTileTokens;
  size_t end = 0;
  for (int layer : layers) {
    if (layer < 0) continue;
    for (int head = 0; head < shape_.num_kv_heads; head++) {
      KVPlane* const pair = &planes_[(size_t(layer) * shape_.num_kv_heads + head) * 2];
      for (int i = 0; i < 2; i++) {
        const KVCodec codec = i == 0 ? shape_.key_codecs[layer] : shape_.value_codecs[layer];
        pair[i] = {codec, end, 0, code_bytes(codec, shape_.head_dim), scale_bytes(codec, shape_.head_dim)};
        end += tiles * pair[i].code_tile;
      }
      for (int i = 0; i < 2; i++) {
        pair[i].scales = end;
        end += tiles * pair[i].scale_tile;
      }
    }
  }
  return end;
}

void KVPool::copy(int source, int target) const {
  if (source == 0)
    std::memset(block(target), 0, block_bytes_);
  else
    std::memcpy(block(target), block(source), block_bytes_);
}

}  // namespace octavo
