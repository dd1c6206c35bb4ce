// x86-64 servers from 2019 on (Cascade Lake), Zen 4 and later.
#pragma once
#include "targets/avx512bw.h"

namespace fewbit::avx512 {

using avx512bw::kGathers, avx512bw::kInt16Rows;

#if defined(FEWBIT_EMULATE)
#define FEWBIT_AVX512 FEWBIT_AVX512BW
inline bool has_isa() { return avx512bw::has_isa(); }
#else
#define FEWBIT_AVX512 FEWBIT_AVX512BW ",avx512vnni"
inline bool has_isa() { return avx512bw::has_isa() && __builtin_cpu_supports("avx512vnni"); }
#endif

}  // namespace fewbit::avx512

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_AVX512
