// The KV pool: one mapping, block-major, so that a block's bytes for all layers of its group are contiguous.
//
//   block b                               at b * block_bytes
//     layer 0 of the group, layer 1, ...
//       KV head 0, 1, ...
//         codes   of keys    [block_size / 16] tiles of [head_dim / 2][16][2]
//                 of values  [block_size / 16] tiles of [8][head_dim][2]
//         scales  of keys, of values  [block_size / 16] tiles of [16] fp16, or of [head_dim / 32][scale, minimum][16]
//     padding to 64 bytes
//
// An element of a tile is 2 bytes, 1, or, in 4 bits, half of one: dimensions j and j + 16 of 32 share a byte. The
// scales follow the codes of their head: attention reads both, and a region of scales of its own was further away.
//
// Block 0 is the null block: zero, never written; copying from it zeroes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/format.h"
#include "memory.h"

namespace octavo {

constexpr int kLayoutVersion = 3;

struct KVShape {
  std::vector<int> group_sizes;                   // layers in each group
  std::vector<int> layer_group;                   // per layer
  std::vector<int> layer_index;                   // per layer, within its group
  std::vector<KVCodec> key_codecs, value_codecs;  // per layer
  int num_kv_heads, head_dim, block_size;
};

class KVPool {
 public:
  KVPool(KVShape shape, int num_blocks);  // throws std::bad_alloc

  const KVShape& shape() const { return shape_; }
  int num_blocks() const { return num_blocks_; }
  size_t block_bytes() const { return block_bytes_; }
  size_t bytes() const { return memory_.bytes(); }
  uint8_t* data() const { return memory_.data(); }
  uint8_t* block(int id) const { return memory_.data() + size_t(id) * block_bytes_; }

  const KVPlane& keys(int layer, int head) const { return planes_[(size_t(layer) * shape_.num_kv_heads + head) * 2]; }
  const KVPlane& values(int layer, int head) const { return (&keys(layer, head))[1]; }

  void copy(int source, int target) const;

 private:
  size_t lay_out(int group);

  KVShape shape_;
  int num_blocks_;
  size_t block_bytes_ = 0;
  std::vector<KVPlane> planes_;  // [layers, heads, keys and values]
  Memory memory_;
};

}  // namespace octavo
