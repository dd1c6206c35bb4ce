// ARM with dot products of bytes: servers from 2019 on (Neoverse-N1), Apple's processors.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "targets/arm_features.h"
#include "targets/prelude.h"
#include "targets/targets.h"

FEWBIT_BEGIN_TARGET(FEWBIT_NEON_DOTPROD)

namespace fewbit::neon_dotprod {

#include "isa/neon_dotprod.h"
//
#include "kernels/all.h"
//
#include "targets/products.h"

constexpr const Target& base = neon::target;

template <class F>
void change(Kernels& out) {
  set_products<F>(out);
  add_integer_kv<F>(out.kv);
}
using neon::recurrent;

#include "targets/changed_table.h"
//
#include "targets/make_target.h"

}  // namespace fewbit::neon_dotprod

FEWBIT_END_TARGET

namespace fewbit::neon_dotprod {

static bool available() { return has_dotprod(); }
extern const Target target;
constinit const Target target = make_target("neon_dotprod", available, &integer_attention);

}  // namespace fewbit::neon_dotprod
#endif
