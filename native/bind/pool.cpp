#include <nanobind/stl/vector.h>

#include "bind/arguments.h"
#include "bind/model.h"

namespace octavo {
namespace {

using namespace nb::literals;

void make_pool(KVPool* self, std::vector<int> group_sizes, std::vector<int> layer_group, std::vector<int> layer_index,
               int num_kv_heads, int head_dim, int block_size, int num_blocks) {
  check(!group_sizes.empty() && !layer_group.empty(), "a pool needs at least one group and one layer");
  check_length("layer_index", layer_index.size(), layer_group.size());
  for (int size : group_sizes) check_between("a group's size", size, 1, 1 << 14);
  for (size_t layer = 0; layer < layer_group.size(); layer++) {
    check_between("layer_group", layer_group[layer], 0, int64_t(group_sizes.size()) - 1);
    check_between("layer_index", layer_index[layer], 0, group_sizes[layer_group[layer]] - 1);
  }
  check_between("num_kv_heads", num_kv_heads, 1, 1 << 14);
  check_between("head_dim", head_dim, 16, kMaxHeadDim);
  check_between("block_size", block_size, kTileTokens, 1024);
  check(head_dim % 16 == 0 && block_size % kTileTokens == 0, "head_dim and block_size must be multiples of 16");
  check_between("num_blocks", num_blocks, 2, INT32_MAX);
  new (self) KVPool(
      {std::move(group_sizes), std::move(layer_group), std::move(layer_index), num_kv_heads, head_dim, block_size},
      num_blocks);
}

Array<uint8_t> pool_block(nb::handle_t<KVPool> self, int id) {
  const KVPool& pool = nb::cast<KVPool&>(self);
  check_between("block_id", id, 0, pool.num_blocks() - 1);
  return Array<uint8_t>(pool.block(id), {pool.block_bytes()}, self);
}

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<KVPool>(m, "KVPool")
      .def("__init__", &make_pool, nb::kw_only(), "group_sizes"_a, "layer_group"_a, "layer_index"_a, "num_kv_heads"_a,
           "head_dim"_a, "block_size"_a, "num_blocks"_a)
      .def_prop_ro("block_bytes", &KVPool::block_bytes)
      .def_prop_ro("nbytes", &KVPool::bytes)
      .def_prop_ro("num_blocks", &KVPool::num_blocks)
      .def("block", &pool_block, "block_id"_a);
}

}  // namespace octavo
