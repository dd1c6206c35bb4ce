// x86-64 servers from 2019 on (Cascade Lake), Zen 4 and later.
#if defined(__x86_64__)
#include <immintrin.h>

#include "targets/prelude.h"
#include "targets/targets.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AVX512)

namespace fewbit::avx512 {

#include "isa/avx512.h"
//
#include "kernels/all.h"
//
#include "targets/products.h"

// What does not multiply bytes is AVX-512's without VNNI.
constexpr const Target& base = avx512bw::target;
template <class F>
void change(Kernels& out) {
  set_products<F>(out);
}
using avx512bw::recurrent;

#include "targets/changed_table.h"
//
#include "targets/make_target.h"

}  // namespace fewbit::avx512

FEWBIT_END_TARGET

namespace fewbit::avx512 {

static bool available() {
#if defined(FEWBIT_EMULATE)
  return avx512bw::target.available();
#endif
  return avx512bw::target.available() && __builtin_cpu_supports("avx512vnni");
}
extern const Target target;
constinit const Target target = make_target("avx512", available, nullptr, 1);

}  // namespace fewbit::avx512
#endif
