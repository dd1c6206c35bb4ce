// Encoders: floats to packed rows.
#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET

namespace fewbit::FEWBIT_ISA {

#include FEWBIT_ISA_HEADER
//
#include "kernels/encode.h"

template <class F>
constexpr Encode encoder() {
  if constexpr (F::rule == Rule::none)
    return nullptr;
  else
    return encode_row<F>;
}

extern const Encode encoders[];
#define FEWBIT_ENCODER(F) encoder<formats::F>(),
const Encode encoders[] = {FEWBIT_FORMATS(FEWBIT_ENCODER)};
#undef FEWBIT_ENCODER

}  // namespace fewbit::FEWBIT_ISA

FEWBIT_END_TARGET
