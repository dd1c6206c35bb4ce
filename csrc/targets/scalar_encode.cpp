// The encoders; scalar.cpp has the rest.
#include "targets/prelude.h"

namespace fewbit::scalar {

#include "isa/scalar.h"
//
#include "kernels/encode.h"
//
#include "targets/encoders.h"

}  // namespace fewbit::scalar
