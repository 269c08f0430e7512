// bf16: keys and values rounded to bfloat16.
#pragma once

struct Bf16 : OneToAnElement<4> {
  using Sum = F;
  static F zero_sum() { return zero(); }
  static Pairs pairs(const uint8_t* code, int) { return load_pairs((const uint16_t*)code); }

  static void prepare(const uint16_t* q, int row, int head_dim, Queries& queries) {
    __builtin_memcpy(queries.x + row * head_dim, q, sizeof(uint16_t) * head_dim);
  }

  template <int R>
  static void score(const Queries& q, int head_dim, const Tiles& tiles, const Tiles& next, float* scores) {
    score_pairs<Bf16, R>(q.x, head_dim, 0, head_dim / 2, tiles, next, 0,
                         [&](int r, int key, F sum) { store(scores + r * kKeyTile + key, sum); });
  }

  template <int R>
  static void add_values(const Probabilities& p, int head_dim, const Tiles& tiles, const Tiles& next, float* acc) {
    alignas(64) uint16_t weights[R * kKeyTile];
    for (int i = 0; i < R * kKeyTile; i += kLanes) store_bf16(weights + i, load(p.p + i));
    value_all<Bf16, R>([&](int r, int, int) { return weights + r * kKeyTile; }, head_dim, tiles, next,
                       [&](int r, int column) { return mul(load(acc + r * head_dim + column), set1(p.decay[r])); },
                       [&](int r, int column, F sum) { store(acc + r * head_dim + column, sum); });
  }

  static void append_key(const float* x, int head_dim, uint8_t* codes, uint8_t*, int slot) {
    alignas(64) uint16_t rounded[kMaxHeadDim];
    for (int i = 0; i < head_dim; i += kLanes) store_bf16(rounded + i, load(x + i));
    for (int i = 0; i < head_dim; i += 2) __builtin_memcpy(codes + 2 * key_place(i, slot), rounded + i, 4);
  }

  // Values are stored finite: a masked probability is 0, and 0 times infinity would reach rows that do not see this
  // key.
  static void append_value(const float* x, int head_dim, uint8_t* codes, uint8_t*, int slot) {
    const F most = set1(3.3895314e38f), least = set1(-3.3895314e38f);  // bfloat16's largest; a NaN becomes the least
    alignas(64) uint16_t rounded[kMaxHeadDim];
    for (int i = 0; i < head_dim; i += kLanes) store_bf16(rounded + i, min(max(load(x + i), least), most));
    uint16_t* tile = (uint16_t*)codes;
    for (int i = 0; i < head_dim; i++) tile[value_place(i, slot, head_dim)] = rounded[i];
  }
};
