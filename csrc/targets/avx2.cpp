// x86-64 from 2013 on.
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX2)

namespace fewbit::avx2 {

#include "isa/avx2.h"
//
#include "kernels/all.h"
//
extern const Encode encoders[];
#include "targets/table.h"
//
#include "targets/make_target.h"

}  // namespace fewbit::avx2

FEWBIT_END_TARGET

namespace fewbit::avx2 {

static bool available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
extern const Target target;
constinit const Target target = make_target("avx2", available);

}  // namespace fewbit::avx2
#endif
