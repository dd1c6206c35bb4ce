// Products on matrix tiles, beside those of AVX-512.
#include "targets/prelude.h"

namespace fewbit::FEWBIT_BASE {
extern const ProductTable products;
}

FEWBIT_BEGIN_TARGET

#if defined(FEWBIT_EMULATE)
#include "isa/emulated_tiles.h"
#endif

namespace fewbit::amx {

#include "kernels/amx/all.h"
//
#include "kernels/amx/fused.h"
#include "kernels/amx/packed.h"
#include "kernels/amx/tile_probe.h"
#include "kernels/probe.h"
//
#include "targets/counted.h"

template <class F>
void set_products(ProductKernels& out) {
  if constexpr (F::kind == Kind::grid) {
    out.gemv = Counted<gemv_rows<F>>::call;
    out.least_micro = ~size_t{0};
  }
  if constexpr (Interleaved<F>::can()) out.skinny = Counted<skinny_rows<F>>::call;
  if constexpr (to_tiles<F>()) {
    out.fused = Counted<fused_rows<F>>::call;
    out.packed = Counted<packed_rows<F>>::call;
  }
}

#include "targets/products.h"

#if FEWBIT_PART == 0
constexpr Tiles tiles = {pack_columns, pack_skinny, skinny_bytes, quantize_left, tile_scratch_bytes};
extern const ProductTable products;
constinit const ProductTable products = {
    add_all_products,
    quantize_row,
    interleave_moves,
    {probe_read<false>, probe_read<true>, probe_tiles<false>, probe_f32, probe_tiles<true>},
    product_count,
    kInt16Rows,
    &tiles};
#endif

}  // namespace fewbit::amx

FEWBIT_END_TARGET
