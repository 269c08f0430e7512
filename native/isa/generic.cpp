#include "kernels/table.h"

namespace octavo::generic {
namespace {
#include "kernels/numbers.h"
#include "isa/vec_generic.h"
#include "kernels/kernels.h"
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {
    "generic",
#include "kernels/entries.h"
};

}  // namespace octavo::generic
