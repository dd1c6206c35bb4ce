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
//
#include "targets/make_target.h"

static bool available() { return true; }
extern const Target target;
constinit const Target target = make_target("scalar", available);

}  // namespace fewbit::scalar
