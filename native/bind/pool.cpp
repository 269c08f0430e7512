#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <set>

#include "bind/arguments.h"
#include "bind/model.h"

namespace octavo {
namespace {

using namespace nb::literals;

std::vector<KVCodec> codecs_of(const char* name, const std::optional<std::vector<std::string>>& formats, size_t layers,
                               int head_dim) {
  std::vector<KVCodec> codecs;
  for (const std::string& format : formats.value_or(std::vector<std::string>(layers, "bf16"))) {
    codecs.push_back(named<KVCodec>(
        name, format,
        {{"bf16", KVCodec::kBf16}, {"int8", KVCodec::kInt8}, {"fp8", KVCodec::kFp8}, {"int4", KVCodec::kInt4}}));
    check(codecs.back() != KVCodec::kInt4 || head_dim % kInt4Group == 0,
          "int4 needs a head_dim that is a multiple of 32");
  }
  check_length(name, codecs.size(), layers);
  return codecs;
}

void make_pool(KVPool* self, std::vector<int> group_sizes, std::vector<int> layer_group, std::vector<int> layer_index,
               int num_kv_heads, int head_dim, int block_size, int num_blocks,
               const std::optional<std::vector<std::string>>& key_formats,
               const std::optional<std::vector<std::string>>& value_formats) {
  check(!group_sizes.empty() && !layer_group.empty(), "a pool needs at least one group and one layer");
  check_length("layer_index", layer_index.size(), layer_group.size());
  std::set<std::pair<int, int>> places;
  for (int size : group_sizes) check_between("a group's size", size, 1, 1 << 14);
  for (size_t layer = 0; layer < layer_group.size(); layer++) {
    check_between("layer_group", layer_group[layer], 0, int64_t(group_sizes.size()) - 1);
    check_between("layer_index", layer_index[layer], 0, group_sizes[layer_group[layer]] - 1);
    check(places.emplace(layer_group[layer], layer_index[layer]).second, "two layers have the same place in a group");
  }
  check_between("num_kv_heads", num_kv_heads, 1, 1 << 14);
  check_between("head_dim", head_dim, 16, kMaxHeadDim);
  check_between("block_size", block_size, kTileTokens, 1024);
  check(head_dim % 16 == 0 && block_size % kTileTokens == 0, "head_dim and block_size must be multiples of 16");
  check_between("num_blocks", num_blocks, 2, INT32_MAX);
  const size_t layers = layer_group.size();
  std::vector<KVCodec> keys = codecs_of("key_formats", key_formats, layers, head_dim);
  std::vector<KVCodec> values = codecs_of("value_formats", value_formats, layers, head_dim);
  new (self) KVPool({std::move(group_sizes), std::move(layer_group), std::move(layer_index), std::move(keys),
                     std::move(values), num_kv_heads, head_dim, block_size},
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
           "head_dim"_a, "block_size"_a, "num_blocks"_a, "key_formats"_a = nb::none(), "value_formats"_a = nb::none())
      .def_prop_ro("block_bytes", &KVPool::block_bytes)
      .def_prop_ro("nbytes", &KVPool::bytes)
      .def_prop_ro("num_blocks", &KVPool::num_blocks)
      .def("block", &pool_block, "block_id"_a);
}

}  // namespace octavo
