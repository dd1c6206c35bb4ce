// What every target file needs before its region opens: standard headers must not be compiled for one instruction set.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "activation.h"
#include "dispatch.h"
#include "formats.generated.h"
#include "formats/read.h"
#include "formats/real.h"
#include "formats/write.h"
#include "kernels/grid_shapes.h"
#include "kernels/panel_shapes.h"
#include "kernels/shapes.h"

// Forced inlining keeps vectors in registers. Without it a file builds several times as fast: for the scalar kernels,
// which have none, and under sanitizers.
#if defined(FEWBIT_SANITIZE) || defined(FEWBIT_NO_REGISTERS)
#define FEWBIT_INLINE inline
#define FEWBIT_LAMBDA_INLINE
#else
#define FEWBIT_INLINE inline __attribute__((always_inline))
#define FEWBIT_LAMBDA_INLINE __attribute__((always_inline))
#endif

// Long functions that are compiled once, not for every way in which they are called.
#if defined(__clang__)
#define FEWBIT_ONCE __attribute__((noinline))
#else
#define FEWBIT_ONCE __attribute__((noinline, noclone))
#endif

// What a target region is compiled for.
#define FEWBIT_AVX2 "avx2,fma,f16c,bmi,bmi2,popcnt"
#define FEWBIT_AVX512BW "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt,prefer-vector-width=512"
#if defined(FEWBIT_EMULATE)
#define FEWBIT_AVX512 FEWBIT_AVX512BW
#define FEWBIT_AMX FEWBIT_AVX512BW
#else
#define FEWBIT_AVX512 FEWBIT_AVX512BW ",avx512vnni"
#define FEWBIT_AMX FEWBIT_AVX512 ",avx512bf16,avx512vbmi,amx-tile,amx-int8,amx-bf16"
#endif
// ARM: gcc knows extensions by what they are added to, clang by their names.
#if defined(__clang__)
#define FEWBIT_NEON_DOTPROD "dotprod"
#define FEWBIT_NEON_I8MM "dotprod,i8mm"
#else
#define FEWBIT_NEON_DOTPROD "arch=armv8.2-a+dotprod"
#define FEWBIT_NEON_I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif

// All that follows is compiled for these extensions, until FEWBIT_END_TARGET.
#define FEWBIT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FEWBIT_BEGIN_TARGET(extensions) \
  FEWBIT_PRAGMA(clang attribute push(__attribute__((target(extensions))), apply_to = function))
#define FEWBIT_END_TARGET FEWBIT_PRAGMA(clang attribute pop)
#else
#define FEWBIT_BEGIN_TARGET(extensions) FEWBIT_PRAGMA(GCC push_options) FEWBIT_PRAGMA(GCC target(extensions))
#define FEWBIT_END_TARGET FEWBIT_PRAGMA(GCC pop_options)
#endif

// Processors without matrix tiles may take 33 cycles for a gather: their microcode keeps it from leaking data.
namespace fewbit::avx512bw {
constexpr bool kGathers = false;
}
namespace fewbit::avx512 {
constexpr bool kGathers = false;
}
namespace fewbit::amx {
constexpr bool kGathers = true;
}
