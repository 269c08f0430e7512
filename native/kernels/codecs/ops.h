// The codecs by their number in KVCodec. Included once per instruction set, after all of them.
#pragma once

template <typename Codec>
static void score_rows(int rows, const Queries& queries, int head_dim, const Tiles& tiles, const Tiles& next,
                       float* scores) {
  for_rows(rows, [&](auto r) { Codec::template score<r.value>(queries, head_dim, tiles, next, scores); });
}

template <typename Codec>
static void add_rows(int rows, const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next,
                     float* acc) {
  for_rows(rows, [&](auto r) { Codec::template add_values<r.value>(p, head_dim, tiles, next, acc); });
}

template <typename Codec>
constexpr KeyOps key_ops_of = {Codec::prepare, score_rows<Codec>, Codec::append_key};
template <typename Codec>
constexpr ValueOps value_ops_of = {add_rows<Codec>, Codec::append_value};

constexpr KeyOps key_ops[] = {key_ops_of<Bf16>, key_ops_of<Int8>, key_ops_of<Fp8>, key_ops_of<Int4>};
constexpr ValueOps value_ops[] = {value_ops_of<Bf16>, value_ops_of<Int8>, value_ops_of<Fp8>, value_ops_of<Int4>};

static void append_key(KVCodec codec, const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
  key_ops[int(codec)].append(x, head_dim, codes, scales, slot);
}

static void append_value(KVCodec codec, const float* x, int head_dim, uint8_t* codes, uint8_t* scales, int slot) {
  value_ops[int(codec)].append(x, head_dim, codes, scales, slot);
}
