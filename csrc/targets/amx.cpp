// x86-64 servers with matrix tiles (Sapphire Rapids and later): AVX-512 for a few columns, tiles for more.
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "targets/prelude.h"
#include "targets/targets.h"

FEWBIT_BEGIN_TARGET(FEWBIT_AMX)

#if defined(FEWBIT_EMULATE)
#include "isa/emulated_tiles.h"
#endif

namespace fewbit::amx {

#include "isa/avx512.h"
//
#include "kernels/k_block.h"
//
#include "kernels/reals.h"
//
#include "kernels/amx/grid_tables.h"
//
#include "kernels/activations.h"
#include "kernels/grids.h"
//
#include "kernels/gemv.h"
//
#include "kernels/interleaved.h"
//
#include "kernels/interleaved_gemv.h"
#include "kernels/kv_block.h"
#include "kernels/kv_tiled.h"
#include "kernels/kv_weigh.h"
#include "kernels/probe.h"
#include "kernels/rows.h"
//
#include "kernels/amx/to_tiles.h"
//
#include "kernels/amx/tiles.h"
//
#include "kernels/amx/fused.h"
#include "kernels/amx/packed.h"
//
#include "kernels/amx/skinny.h"
//
#include "kernels/amx/code_scratch.h"
#include "kernels/amx/kv_quick.h"
#include "kernels/amx/tile_attention.h"
//
#include "kernels/amx/kv_codes.h"
//
#include "kernels/amx/tile_codes.h"
#include "kernels/amx/tile_probe.h"
//
#include "targets/counted.h"

constexpr Probes probes = {probe_read<false>, probe_read<true>, probe_tiles_int8, probe_f32, probe_tiles_bf16};

// AVX-512's, with tiles added.
template <class F>
void change(Kernels& out) {
  if constexpr (F::kind == Kind::grid) {
    out.gemv = Counted<gemv_rows<F>>::call;
    out.least_micro = ~size_t{0};
  }
  if constexpr (Interleaved<F>::can()) out.skinny = Counted<skinny_rows<F>>::call;
  if constexpr (to_tiles<F>()) {
    out.fused = Counted<fused_rows<F>>::call;
    out.packed = Counted<packed_rows<F>>::call;
  }
  if constexpr (KvCodes<F>::can()) {
    out.kv.pack_queries = pack_code_queries;
    out.kv.integer_keys = integer_keys<F>;
    out.kv.integer_values = integer_values<F>;
  }
  if constexpr (KvTiled<F>::can()) {
    out.kv.prefers_tiled = true;
    out.kv.tiled_floats = tiled_floats<F>;
  }
  if constexpr (KvQuick<F>::can()) out.kv.quick_to_tiled = quick_to_tiled<F>;
}

constexpr const Target& base = avx512::target;
#include "targets/changed_table.h"

}  // namespace fewbit::amx

FEWBIT_END_TARGET

namespace fewbit::amx {

// The system gives tiles to a process that asks for them.
static bool granted() {
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool yes = syscall(SYS_arch_prctl, request, tile_data) == 0;
  return yes;
}
static bool has_tiles() {  // gcc 12 does not know their names
  unsigned a, b, c, d;
  constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tile) && (d & int8);
}
static bool available() {
#if defined(FEWBIT_EMULATE)
  return avx512::target.available();
#endif
  return avx512::target.available() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         has_tiles() && granted();
}
extern const Target target;
const Tiles tiles = {pack_columns, pack_skinny, skinny_bytes, quantize_left, tile_scratch_bytes};
const Target target = {"amx",    available, kernels,        quantize_row,     kv_weigh,
                       kv_scale, kv_rotate, row_kernels,    interleave_moves, &tiles,
                       probes,   products,  base.recurrent, &code_attention,  &tile_attention,
                       1};

}  // namespace fewbit::amx
#endif
