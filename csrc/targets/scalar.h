// Any machine.
#pragma once
#include <cstddef>

#define FEWBIT_NO_REGISTERS

namespace fewbit::scalar {

constexpr size_t kInt16Rows = 0;

inline bool has_isa() { return true; }

}  // namespace fewbit::scalar
