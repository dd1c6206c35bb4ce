// What an ARM processor has beside ARMv8.0, as its system tells.
#pragma once
#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fewbit {

#if defined(__APPLE__)
inline bool has_arm_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
inline bool has_dotprod() { return has_arm_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_i8mm() { return has_arm_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)  // the bits of HWCAP_ASIMDDP and HWCAP2_I8MM, which old headers do not name
inline bool has_dotprod() { return (getauxval(AT_HWCAP) & 1ul << 20) != 0; }
inline bool has_i8mm() { return (getauxval(AT_HWCAP2) & 1ul << 13) != 0; }
#else
inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }
#endif

}  // namespace fewbit
