// What every file of kernels needs before its region opens: standard headers must not be compiled for one instruction
// set. The build says which one it is: FEWBIT_ISA, see targets.cmake.
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
#include "formats.generated.h"
#include "formats/read.h"
#include "formats/real.h"
#include "formats/write.h"
#include "kernels/grid_shapes.h"
#include "kernels/panel_shapes.h"
#include "kernels/shapes.h"
#include "target.h"

#define FEWBIT_QUOTED(text) #text
#define FEWBIT_HEADER(path) FEWBIT_QUOTED(path)
// clang-format off
#define FEWBIT_ISA_HEADER FEWBIT_HEADER(isa/FEWBIT_ISA.h)
#include FEWBIT_HEADER(targets/FEWBIT_ISA.h)
// clang-format on

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

// All between these two is compiled for the extensions of the instruction set.
#define FEWBIT_PRAGMA(text) _Pragma(#text)
#if !defined(FEWBIT_EXTENSIONS)
#define FEWBIT_BEGIN_TARGET
#define FEWBIT_END_TARGET
#elif defined(__clang__)
#define FEWBIT_ATTRIBUTE(extensions) \
  FEWBIT_PRAGMA(clang attribute push(__attribute__((target(extensions))), apply_to = function))
#define FEWBIT_BEGIN_TARGET FEWBIT_ATTRIBUTE(FEWBIT_EXTENSIONS)
#define FEWBIT_END_TARGET FEWBIT_PRAGMA(clang attribute pop)
#else
#define FEWBIT_OPTIONS(extensions) FEWBIT_PRAGMA(GCC push_options) FEWBIT_PRAGMA(GCC target(extensions))
#define FEWBIT_BEGIN_TARGET FEWBIT_OPTIONS(FEWBIT_EXTENSIONS)
#define FEWBIT_END_TARGET FEWBIT_PRAGMA(GCC pop_options)
#endif

namespace fewbit {

// The place of each format in FEWBIT_FORMATS.
namespace number_of {
#define FEWBIT_NUMBER(F) F,
enum : size_t { FEWBIT_FORMATS(FEWBIT_NUMBER) count };
#undef FEWBIT_NUMBER
}  // namespace number_of

}  // namespace fewbit
