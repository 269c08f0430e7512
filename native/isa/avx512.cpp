#include <immintrin.h>

#include "kernels/table.h"

namespace octavo::avx512 {
namespace {
#include "kernels/numbers.h"
#include "isa/vec_avx512.h"
#include "kernels/kernels.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    "avx512",
#include "kernels/entries.h"
};

}  // namespace octavo::avx512
