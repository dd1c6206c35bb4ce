// Recurrent layers, for all ARMv8 processors; neon.cpp has the rest.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "recurrent_kernels.h"
#include "targets/prelude.h"

namespace fewbit::neon {

#include "isa/neon.h"
//
#include "kernels/recurrent.h"
//
#include "targets/recurrent_table.h"

}  // namespace fewbit::neon
#endif
