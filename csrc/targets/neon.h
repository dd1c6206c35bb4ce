// Every ARMv8 processor.
#pragma once
#include <arm_neon.h>

#include <cstddef>

namespace fewbit::neon {

constexpr size_t kInt16Rows = 0;

inline bool has_isa() { return true; }

}  // namespace fewbit::neon
