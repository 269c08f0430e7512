// What this machine gives at most, measured: the roof that benchmarks compare with.
#pragma once
#include "kernels/table.h"

namespace octavo {

struct Roof {
  double bytes_per_second;  // reading memory far larger than any cache, all threads together
  double flops_per_second;  // multiply-adds on registers, all threads together
};

Roof measure_roof(const Kernels& kernels, int threads, size_t bytes);

}  // namespace octavo
