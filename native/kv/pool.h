// The KV pool: one mapping, block-major, so that a block's bytes for all layers of its group are contiguous.
//
//   block b                                         at b * block_bytes
//     layer i of the group                          at i * layer_bytes
//       KV head h                                   at h * head_bytes
//         keys    [block_size / 16] tiles of [head_dim / 2][16][2] bf16
//         values  [block_size / 16] tiles of [8][head_dim][2]      bf16
//
// Block 0 is the null block: zero, never written; copying from it zeroes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"

namespace octavo {

constexpr int kLayoutVersion = 2;

struct KVShape {
  std::vector<int> group_sizes;  // layers in each group
  std::vector<int> layer_group;  // per layer
  std::vector<int> layer_index;  // per layer, within its group
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

  // Bytes from a block's start to the keys, and to the values, of one layer and head.
  size_t key_offset(int layer, int head) const {
    return (size_t(shape_.layer_index[layer]) * shape_.num_kv_heads + head) * 2 * plane_bytes_;
  }
  size_t value_offset(int layer, int head) const { return key_offset(layer, head) + plane_bytes_; }

  void copy(int source, int target) const;

 private:
  KVShape shape_;
  int num_blocks_;
  size_t plane_bytes_;  // keys, or values, of one layer and head in one block
  size_t block_bytes_;
  Memory memory_;
};

}  // namespace octavo
