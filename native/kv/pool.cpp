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
  const auto each_plane = [&](auto&& visit) {
    for (int layer : layers)
      for (int i = 0; i < (layer < 0 ? 0 : 2 * shape_.num_kv_heads); i++)
        visit(planes_[size_t(layer) * shape_.num_kv_heads * 2 + i],
              i % 2 == 0 ? shape_.key_codecs[layer] : shape_.value_codecs[layer]);
  };
  const size_t tiles = shape_.block_size / kTileTokens;
  size_t end = 0;
  each_plane([&](KVPlane& plane, KVCodec codec) {
    plane = {codec, end, 0, code_bytes(codec, shape_.head_dim), scale_bytes(codec, shape_.head_dim)};
    end += tiles * plane.code_tile;
  });
  each_plane([&](KVPlane& plane, KVCodec) {
    plane.scales = end;
    end += tiles * plane.scale_tile;
  });
  return end;
}

void KVPool::copy(int source, int target) const {
  if (source == 0)
    std::memset(block(target), 0, block_bytes_);
  else
    std::memcpy(block(target), block(source), block_bytes_);
}

}  // namespace octavo
