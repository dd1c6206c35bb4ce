// The encoders, for all with AVX-512; avx512bw.cpp has the rest.
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512BW)

namespace fewbit::avx512bw {

#include "isa/avx512bw.h"
//
#include "kernels/encode.h"
//
#include "targets/encoders.h"

}  // namespace fewbit::avx512bw

FEWBIT_END_TARGET
#endif
