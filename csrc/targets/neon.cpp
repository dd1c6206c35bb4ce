// Every ARMv8 processor.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "targets/prelude.h"

namespace fewbit::neon {

#include "isa/neon.h"
//
#include "kernels/all.h"
//
extern const Encode encoders[];
#include "targets/table.h"

static bool available() { return true; }
extern const Target target;
const Target target = {"neon",    available,   kernels,          quantize_row, kv_weigh, kv_scale,
                       kv_rotate, row_kernels, interleave_moves, nullptr,      probes,   products};

}  // namespace fewbit::neon
#endif
