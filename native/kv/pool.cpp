#include "kv/pool.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace octavo {
namespace {
constexpr size_t kAlignment = 64;
}

KVPool::KVPool(KVShape shape, int num_blocks) : shape_(std::move(shape)), num_blocks_(num_blocks) {
  plane_bytes_ = sizeof(uint16_t) * shape_.block_size * shape_.head_dim;
  const size_t layers = *std::max_element(shape_.group_sizes.begin(), shape_.group_sizes.end());
  const size_t payload = layers * shape_.num_kv_heads * 2 * plane_bytes_;
  block_bytes_ = (payload + kAlignment - 1) / kAlignment * kAlignment;
  size_t bytes;
  if (__builtin_mul_overflow(block_bytes_, size_t(num_blocks_), &bytes)) throw std::bad_alloc();
  memory_ = Memory(bytes);
}

void KVPool::copy(int source, int target) const {
  if (source == 0)
    std::memset(block(target), 0, block_bytes_);
  else
    std::memcpy(block(target), block(source), block_bytes_);
}

}  // namespace octavo
