// The kernels that multiply bytes, for a table of functions. Included inside the namespace of an instruction set.

#include "targets/counted.h"
//
#include "targets/by_lane_table.h"

template <class F>
void set_products(Kernels& out) {
  if constexpr (F::kind != Kind::scalar) {
    out.sub = Shape<F>::sub;
    out.dot = Counted<dot_rows<F, DotOf<F>>>::call;
    out.lanes = Counted<lane_rows<F>>::call;
    out.lane_scratch = lane_scratch<F>;
    out.least_lanes = Isa::least_lanes;
    out.lies_abreast = can_lie_abreast<F>();
    out.laid_at_once = Shape<F>::row || Shape<F>::span_bytes() % 4 == 0 ? 0 : Shape<F>::span_bytes();
    if constexpr (Abreast<F>::can() && Isa::dots_by_lane) {
      use_lanes<F>(out.by_lane);
    } else if constexpr (Abreast<F>::can()) {
      out.abreast = Counted<abreast_rows<F>>::call;
      out.lanes_abreast = Counted<lane_rows_abreast<F>>::call;
    }
  }
}
