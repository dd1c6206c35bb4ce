// Attention on matrix tiles.
#include "targets/prelude.h"

namespace fewbit::FEWBIT_BASE {
extern const KvTable kv;
}

FEWBIT_BEGIN_TARGET

#if defined(FEWBIT_EMULATE)
#include "isa/emulated_tiles.h"
#endif

namespace fewbit::amx {

#include "kernels/amx/all.h"
//
#include "kernels/kv_block.h"
#include "kernels/kv_weigh.h"
//
#include "kernels/kv_tiled.h"
//
#include "kernels/amx/code_scratch.h"
#include "kernels/amx/kv_quick.h"
#include "kernels/amx/tile_attention.h"
#include "kernels/kv_float_tiles.h"
//
#include "kernels/amx/kv_codes.h"
//
#include "kernels/amx/tile_codes.h"

template <class F>
void set_kv(KvKernels& out) {
  if constexpr (KvTiled<F>::can()) {
    out.pack_queries = pack_code_queries;
    out.integer_keys = integer_keys<F>;
    out.integer_values = integer_values<F>;
    out.prefers_tiled = true;
    out.tiled_floats = tiled_floats<F>;
  }
  if constexpr (KvQuick<F>::can()) out.quick_to_tiled = quick_to_tiled<F>;
}

#include "targets/kv.h"

extern const KvTable kv;
constinit const KvTable kv = {add_kv, kv_weigh, &code_attention, &tile_attention, &float_attention};

}  // namespace fewbit::amx

FEWBIT_END_TARGET
