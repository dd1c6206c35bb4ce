// Recurrent layers; avx2.cpp has the rest.
#if defined(__x86_64__)
#include <immintrin.h>

#include "recurrent_kernels.h"
#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX2)

namespace fewbit::avx2 {

#include "isa/avx2.h"
//
#include "kernels/recurrent.h"
//
#include "targets/recurrent_table.h"

}  // namespace fewbit::avx2

FEWBIT_END_TARGET
#endif
