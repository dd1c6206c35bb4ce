// Rows of floats: decoded ones, activations, states of recurrent layers, logits.
#include "targets/prelude.h"

FEWBIT_BEGIN_TARGET

namespace fewbit::FEWBIT_ISA {

#include FEWBIT_ISA_HEADER
//
#include "kernels/k_block.h"
//
#include "kernels/reals.h"
//
#include "kernels/decode.h"
#include "kernels/kv_weigh.h"
#include "kernels/rows.h"
//
#include "kernels/exact.h"
//
#include "kernels/backward.h"
//
#include "kernels/low_rank.h"
#include "kernels/recurrent.h"
//
#include "targets/counted.h"

namespace logits {
#include "kernels/passes.h"
}

template <class F>
constexpr DecodeKernels decoder = {F::name, layout<F>, decode_row<F>, Counted<exact_rows<F>>::call};

static void add_decoders(Kernels* by_format) {
#define FEWBIT_ADD(F) static_cast<DecodeKernels&>(*by_format++) = decoder<formats::F>;
  FEWBIT_FORMATS(FEWBIT_ADD)
#undef FEWBIT_ADD
}

extern const RowTable rows;
constinit const RowTable rows = {add_decoders,   norm_row,
                                 rope_row,       gate_row,
                                 kv_scale,       kv_rotate,
                                 backward_rows,  {conv_columns, delta_rule, scan},
                                 logits::passes, {low_rank_down, low_rank_up}};

}  // namespace fewbit::FEWBIT_ISA

FEWBIT_END_TARGET
