// Attention over rows of the KV cache.
#include "targets/prelude.h"

#if defined(FEWBIT_BASE)  // whose kernels this instruction set adds those of integers to
namespace fewbit::FEWBIT_BASE {
extern const KvTable kv;
}
#endif

FEWBIT_BEGIN_TARGET

namespace fewbit::FEWBIT_ISA {

#include FEWBIT_ISA_HEADER
//
#include "kernels/k_block.h"
//
#include "kernels/reals.h"
//
#include "kernels/kv_block.h"
#include "kernels/kv_weigh.h"
//
#include "kernels/kv_narrow.h"
//
#include "kernels/kv.h"
#include "kernels/kv_tiled.h"
//
#include "kernels/kv_float_tiles.h"
#include "kernels/kv_integer.h"

template <class F>
void set_kv(KvKernels& out) {
#if !defined(FEWBIT_BASE)
  out.block = F::kind == Kind::scalar ? 1 : 32;
  if constexpr (KvBlock<F>::can()) {
    out.scores = kv_scores<F>;
    out.values = kv_values<F>;
    out.floats = kv_floats<F>;
  }
  if constexpr (KvTiled<F>::can()) {
    out.to_tiled = to_tiled<F>;
    out.from_tiled = from_tiled<F>;
  }
#endif
  if constexpr (KvIntegers<F>::can()) {
    out.pack_queries = pack_integer_queries<F>;
    out.integer_keys = integer_keys<F>;
    out.integer_values = integer_values<F>;
  }
}

#include "targets/kv.h"

extern const KvTable kv;
constexpr const MatrixAttention* in_floats = Isa::registers > 0 ? &float_attention : nullptr;
constinit const KvTable kv = {add_kv, kv_weigh, Isa::integer_kv ? &integer_attention : nullptr, in_floats, in_floats};

}  // namespace fewbit::FEWBIT_ISA

FEWBIT_END_TARGET
