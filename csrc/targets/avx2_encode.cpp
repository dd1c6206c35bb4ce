// The encoders; avx2.cpp has the rest.
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX2)

namespace fewbit::avx2 {

#include "isa/avx2.h"
//
#include "kernels/encode.h"
//
#include "targets/encoders.h"

}  // namespace fewbit::avx2

FEWBIT_END_TARGET
#endif
