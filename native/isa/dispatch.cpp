// Which instruction sets this machine can run, the operating system's say included.
#include <cstring>

#include "kernels/table.h"

namespace octavo {
namespace {

struct Entry {
  const Kernels* kernels;
  bool (*runs_here)();
};

bool always() { return true; }
#ifdef OCTAVO_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

const Entry entries[] = {
#ifdef OCTAVO_X86
    {&avx512_bf16::kernels, has_avx512_bf16},
    {&avx512::kernels, has_avx512},
    {&avx2::kernels, has_avx2},
#endif
    {&generic::kernels, always},
};
constexpr size_t kCount = sizeof(entries) / sizeof(entries[0]);

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (const Entry& entry : entries)
    if (std::strcmp(entry.kernels->name, name) == 0 && entry.runs_here()) return entry.kernels;
  return nullptr;
}

const char* const* supported_isas() {
  static const char* const* const names = [] {
    static const char* list[kCount + 1] = {};
    size_t count = 0;
    for (const Entry& entry : entries)
      if (entry.runs_here()) list[count++] = entry.kernels->name;
    return list;
  }();
  return names;
}

}  // namespace octavo
