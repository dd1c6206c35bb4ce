// Any machine.
#define FEWBIT_NO_REGISTERS
#include "targets/prelude.h"

namespace fewbit::scalar {

#include "isa/scalar.h"
//
#include "kernels/all.h"
//
extern const Encode encoders[];
#include "targets/table.h"

}  // namespace fewbit::scalar

namespace fewbit::scalar {

static bool available() { return true; }
extern const Target target;
const Target target = {"scalar",  available,   kernels,          quantize_row, kv_weigh, kv_scale,
                       kv_rotate, row_kernels, interleave_moves, nullptr,      probes,   products};

}  // namespace fewbit::scalar
