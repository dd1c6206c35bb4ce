// x86-64 servers from 2017 on (Skylake).
#pragma once
#include <immintrin.h>

#include <cstddef>

namespace fewbit::avx512bw {

#define FEWBIT_AVX512BW "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt,prefer-vector-width=512"
// Processors without matrix tiles may take 33 cycles for a gather: their microcode keeps it from leaking data.
constexpr bool kGathers = false;
constexpr size_t kInt16Rows = 1;

inline bool has_isa() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace fewbit::avx512bw

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_AVX512BW
