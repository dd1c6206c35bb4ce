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
#include "targets/changed_table.h"

constexpr Probes probes = {probe_read<false>, probe_read<true>, probe_int8, probe_f32, nullptr};

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
const Target target = {"avx512",  available,   kernels,          quantize_row, kv_weigh, kv_scale,
                       kv_rotate, row_kernels, interleave_moves, nullptr,      probes,   products};

}  // namespace fewbit::avx512
#endif
