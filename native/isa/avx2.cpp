#include <immintrin.h>

#include "kernels/table.h"

namespace octavo::avx2 {
namespace {
#include "kernels/numbers.h"
#include "isa/vec_avx2.h"
#include "kernels/kernels.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    "avx2",
#include "kernels/entries.h"
};

}  // namespace octavo::avx2
