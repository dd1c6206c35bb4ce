// The encoders, for all with NEON; neon.cpp has the rest.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "targets/prelude.h"

namespace fewbit::neon {

#include "isa/neon.h"
//
#include "kernels/encode.h"
//
#include "targets/encoders.h"

}  // namespace fewbit::neon
#endif
