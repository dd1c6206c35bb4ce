// ARM with matrix products of bytes: Neoverse-V1 and later, Apple's processors from 2022 on. A few columns are left to
// dot products.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "targets/arm_features.h"
#include "targets/prelude.h"
#include "targets/targets.h"

FEWBIT_BEGIN_TARGET(FEWBIT_NEON_I8MM)

namespace fewbit::neon_i8mm {

#include "isa/neon_i8mm.h"
//
#include "kernels/all.h"
//
#include "targets/counted.h"
//
#include "targets/by_lane_table.h"

constexpr const Target& base = neon_dotprod::target;

template <class F>
void change(Kernels& out) {
  if constexpr (F::kind != Kind::scalar) {
    if constexpr (Interleaved<F>::can())
      use_by_lane_panels<F>(out.by_lane);
    else
      out.micro = Counted<micro_rows<F>>::call;
  }
}

using neon::recurrent;

#include "targets/changed_table.h"
//
#include "targets/make_target.h"

}  // namespace fewbit::neon_i8mm

FEWBIT_END_TARGET

namespace fewbit::neon_i8mm {

static bool available() { return neon_dotprod::target.available() && has_i8mm(); }
extern const Target target;
constinit const Target target = make_target("neon_i8mm", available, &integer_attention);

}  // namespace fewbit::neon_i8mm
#endif
