// Every instruction set that this build knows, best first. A new one is a header in isa/, a file here, and a line
// below.
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
  return {
#if defined(__x86_64__)
      &amx::target, &avx512::target, &avx512bw::target, &avx2::target,
#elif defined(__aarch64__)
      &neon_i8mm::target, &neon_dotprod::target, &neon::target,
#endif
      &scalar::target};
}

}  // namespace fewbit
