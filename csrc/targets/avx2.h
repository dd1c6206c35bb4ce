// x86-64 from 2013 on.
#pragma once
#include <immintrin.h>

#include <cstddef>

namespace fewbit::avx2 {

#define FEWBIT_AVX2 "avx2,fma,f16c,bmi,bmi2,popcnt"
constexpr size_t kInt16Rows = 0;

inline bool has_isa() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace fewbit::avx2

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_AVX2
