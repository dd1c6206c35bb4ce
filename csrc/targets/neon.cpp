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
//
#include "targets/make_target.h"

static bool available() { return true; }
extern const Target target;
constinit const Target target = make_target("neon", available);

}  // namespace fewbit::neon
#endif
