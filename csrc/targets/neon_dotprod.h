// ARM with dot products of bytes: servers from 2019 on (Neoverse-N1), Apple's processors.
#pragma once
#include "targets/arm_features.h"
#include "targets/neon.h"

namespace fewbit::neon_dotprod {

using neon::kInt16Rows;

#if defined(__clang__)  // knows extensions by their names, gcc by what they are added to
#define FEWBIT_NEON_DOTPROD "dotprod"
#else
#define FEWBIT_NEON_DOTPROD "arch=armv8.2-a+dotprod"
#endif

inline bool has_isa() { return has_dotprod(); }

}  // namespace fewbit::neon_dotprod

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_NEON_DOTPROD
