// Every instruction set that this build has kernels for, best first. A new one is a header in isa/, a file here, a line
// below and, where it can be the best one of a machine, a rule in native.cmake.
#pragma once
#include <vector>

#include "dispatch.h"

namespace fewbit {

namespace scalar {
extern const Target target;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Target target;
}
namespace avx512bw {
extern const Target target;
}
namespace avx512 {
extern const Target target;
}
namespace amx {
extern const Target target;
}
#elif defined(__aarch64__)
namespace neon {
extern const Target target;
}
namespace neon_dotprod {
extern const Target target;
}
namespace neon_i8mm {
extern const Target target;
}
#endif

inline std::vector<const Target*> all_targets() {
#if defined(FEWBIT_NATIVE_TARGETS)  // a build for one machine, see native.cmake
  return {FEWBIT_NATIVE_TARGETS};
#elif defined(__x86_64__)
  return {&amx::target, &avx512::target, &avx512bw::target, &avx2::target, &scalar::target};
#elif defined(__aarch64__)
  return {&neon_i8mm::target, &neon_dotprod::target, &neon::target, &scalar::target};
#else
  return {&scalar::target};
#endif
}

}  // namespace fewbit
