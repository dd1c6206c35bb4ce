// Encoders: floats to packed rows.
#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET

namespace fewbit::FEWBIT_ISA {

#include FEWBIT_ISA_HEADER
//
#include "kernels/encode.h"

extern const Encode encoders[];
#define FEWBIT_ENCODER(F) encode_row<formats::F>,
const Encode encoders[] = {FEWBIT_FORMATS(FEWBIT_ENCODER)};
#undef FEWBIT_ENCODER

}  // namespace fewbit::FEWBIT_ISA

FEWBIT_END_TARGET
