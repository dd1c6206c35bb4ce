// x86-64 servers with matrix tiles (Sapphire Rapids and later): AVX-512 for a few columns, tiles for more.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "targets/avx512.h"

namespace fewbit::amx {

#if defined(FEWBIT_EMULATE)
#define FEWBIT_AMX FEWBIT_AVX512
#else
#define FEWBIT_AMX FEWBIT_AVX512 ",avx512bf16,avx512vbmi,amx-tile,amx-int8,amx-bf16"
#endif
constexpr bool kGathers = true;
constexpr size_t kInt16Rows = 1;

// The system gives tiles to a process that asks for them.
inline bool are_tiles_granted() {
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool yes = syscall(SYS_arch_prctl, request, tile_data) == 0;
  return yes;
}
inline bool has_tiles() {  // gcc 12 does not know their names
  unsigned a, b, c, d;
  constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tile) && (d & int8);
}
inline bool has_isa() {
#if defined(FEWBIT_EMULATE)
  return avx512::has_isa();
#else
  return avx512::has_isa() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         has_tiles() && are_tiles_granted();
#endif
}

}  // namespace fewbit::amx

#undef FEWBIT_EXTENSIONS
#define FEWBIT_EXTENSIONS FEWBIT_AMX
