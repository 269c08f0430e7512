// All kernels of one instruction set. A unit in isa/ includes its vec_*.h and then this file, inside its own
// namespace; nothing here may call an inline function from outside it, std ones included: the linker could pick the
// copy compiled here for everybody, and an older machine would meet an instruction it does not have.
#include "kernels/math.h"
#include "kernels/micro.h"
#include "kernels/gemm.h"
#include "kernels/elementwise.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/bf16.h"
#include "kernels/codecs/fp8.h"
#include "kernels/codecs/integers.h"
#include "kernels/codecs/int8.h"
#include "kernels/codecs/int4.h"
#include "kernels/codecs/ops.h"
#include "kernels/attention.h"
