// x86-64 servers from 2017 on (Skylake).
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512BW)

namespace fewbit::avx512bw {

#include "isa/avx512bw.h"
//
#include "kernels/all.h"
//
extern const Encode encoders[];
#include "targets/table.h"
//
#include "targets/make_target.h"

}  // namespace fewbit::avx512bw

FEWBIT_END_TARGET

namespace fewbit::avx512bw {

static bool available() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
extern const Target target;
constinit const Target target = make_target("avx512bw", available, nullptr, 1);

}  // namespace fewbit::avx512bw
#endif
