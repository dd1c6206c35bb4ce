// Recurrent layers, for all with AVX-512; avx512bw.cpp has the rest.
#if defined(__x86_64__)
#include <immintrin.h>

#include "recurrent_kernels.h"
#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512BW)

namespace fewbit::avx512bw {

#include "isa/avx512bw.h"
//
#include "kernels/recurrent.h"
//
#include "targets/recurrent_table.h"

}  // namespace fewbit::avx512bw

FEWBIT_END_TARGET
#endif
