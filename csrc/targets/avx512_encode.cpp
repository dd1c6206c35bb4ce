// The encoders; avx512.cpp has the rest.
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512)

namespace fewbit::avx512 {

#include "isa/avx512.h"
//
#include "kernels/encode.h"
//
#include "targets/encoders.h"

}  // namespace fewbit::avx512

FEWBIT_END_TARGET
#endif
