// Products of bytes.
#include "targets/prelude.h"

#if defined(FEWBIT_BASE)  // whose products this instruction set adds its own to
namespace fewbit::FEWBIT_BASE {
extern const ProductTable products;
}
#endif

FEWBIT_BEGIN_TARGET

namespace fewbit::FEWBIT_ISA {

#include FEWBIT_ISA_HEADER
//
#include "kernels/all.h"
//
#include "targets/counted.h"

template <class F>
void set_panels(LaneKernels& out) {
  out.pack = pack_panels<F>;
  out.panels[0] = Counted<by_lane_panels<F, 1>>::call;
  out.panels[1] = Counted<by_lane_panels<F, 2>>::call;
  out.least_panels = Own<F>::type::least_panels;
  out.scratch_bytes = Own<F>::type::panel_k_blocks * sizeof(typename LanePanel<F>::Tile);
}

template <class F>
void set_interleaved(ProductKernels& out) {
  if constexpr (Isa::dots_by_lane) {
    out.by_lane.set_bytes = LaneColumns<F>::bytes;
    out.by_lane.skinny[0] = Counted<by_lane_rows<F, 1>>::call;
    out.by_lane.skinny[1] = Counted<by_lane_rows<F, 2>>::call;
    set_panels<F>(out.by_lane);
  } else {
    out.interleaved_gemv = Counted<interleaved_gemv_rows<F>>::call;
  }
}

template <class F>
void set_products(ProductKernels& out) {
  if constexpr (F::kind != Kind::scalar) {
#if defined(FEWBIT_BASE)  // matrix products of bytes; a few columns are left to dot products
    if constexpr (Interleaved<F>::can())
      set_panels<F>(out.by_lane);
    else
      out.micro = Counted<micro_rows<F>>::call;
#else
    out.group_size = Shape<F>::group_size;
    out.gemv = Counted<gemv_rows<F, GemvOf<F>>>::call;
    if constexpr (Isa::registers > 0 && !(Interleaved<F>::can() && Isa::dots_by_lane)) {
      out.micro = Counted<micro_rows<F>>::call;
      out.micro_scratch = micro_scratch<F>;
    }
    out.least_micro = Isa::least_micro;
    out.interleaves = interleaved_values<F>();
    out.laid_at_once = Shape<F>::row || Shape<F>::k_block_bytes() % 4 == 0 ? 0 : Shape<F>::k_block_bytes();
    if constexpr (Interleaved<F>::can()) set_interleaved<F>(out);
#endif
  }
}

#include "targets/products.h"

#if FEWBIT_PART == 0
extern const ProductTable products;
constinit const ProductTable products = {
    add_all_products, quantize_row,
    interleave_moves, {probe_read<false>, probe_read<true>, probe_int8, probe_f32, nullptr},
    product_count,    kInt16Rows};
#endif

}  // namespace fewbit::FEWBIT_ISA

FEWBIT_END_TARGET
