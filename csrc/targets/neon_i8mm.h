// ARM with matrix products of bytes: Neoverse-V1 and later, Apple's processors from 2022 on.
#pragma once
#include "targets/neon_dotprod.h"

namespace fewbit::neon_i8mm {

using neon::kInt16Rows;

#if defined(__clang__)
#define FEWBIT_NEON_I8MM "dotprod,i8mm"
#else
#define FEWBIT_NEON_I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif

inline bool has_isa() { return has_dotprod() && has_i8mm(); }

}  // namespace fewbit::neon_i8mm

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_NEON_I8MM
