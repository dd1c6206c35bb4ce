// Recurrent layers; scalar.cpp has the rest.
#include "recurrent_kernels.h"
#include "targets/prelude.h"

namespace fewbit::scalar {

#include "isa/scalar.h"
//
#include "kernels/recurrent.h"
//
#include "targets/recurrent_table.h"

}  // namespace fewbit::scalar
