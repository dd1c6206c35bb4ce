// The kernels that multiply bytes, for a table of functions. Included inside the namespace of an instruction set.

#include "targets/counted.h"
//
#include "targets/by_lane_table.h"

template <class F>
void set_products(Kernels& out) {
  if constexpr (F::kind != Kind::scalar) {
    out.group_size = Shape<F>::group_size;
    out.gemv = Counted<gemv_rows<F, GemvOf<F>>>::call;
    if constexpr (Isa::registers > 0 && !(Interleaved<F>::can() && Isa::dots_by_lane)) {
      out.micro = Counted<micro_rows<F>>::call;
      out.micro_scratch = micro_scratch<F>;
    }
    out.least_micro = Isa::least_micro;
    out.interleaves = can_interleave<F>();
    out.laid_at_once = Shape<F>::row || Shape<F>::k_block_bytes() % 4 == 0 ? 0 : Shape<F>::k_block_bytes();
    if constexpr (Interleaved<F>::can() && Isa::dots_by_lane) {
      use_by_lane<F>(out.by_lane);
    } else if constexpr (Interleaved<F>::can()) {
      out.interleaved_gemv = Counted<interleaved_gemv_rows<F>>::call;
    }
  }
}
