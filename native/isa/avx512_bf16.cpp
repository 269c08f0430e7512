#include <immintrin.h>

#define OCTAVO_BF16_DOT
#include "kernels/table.h"

namespace octavo::avx512_bf16 {
namespace {
#include "kernels/numbers.h"
#include "isa/vec_avx512.h"
#include "kernels/kernels.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    "avx512_bf16",
#include "kernels/entries.h"
};

}  // namespace octavo::avx512_bf16
