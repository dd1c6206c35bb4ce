# Leaves in `kernels` the files of the best instruction set of this machine and of scalar, the fallback.
#
# Some instruction sets build on another one (`base` in their files). A base whose products are all replaced is compiled
# without them, which is most of its time, and is not listed.

execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                OUTPUT_VARIABLE macros RESULT_VARIABLE failed ERROR_VARIABLE why)

function(machine_has result)  # whether the compiler defines all these macros for this machine
  set(${result} TRUE PARENT_SCOPE)
  foreach(macro ${ARGN})
    if(NOT macros MATCHES "#define ${macro} ")
      set(${result} FALSE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

machine_has(amx __AVX512VNNI__ __AVX512BF16__ __AVX512VBMI__ __AMX_TILE__ __AMX_INT8__ __AMX_BF16__)
machine_has(avx512 __AVX512BW__ __AVX512DQ__ __AVX512VL__ __AVX512VNNI__)
machine_has(avx512bw __AVX512BW__ __AVX512DQ__ __AVX512VL__)
machine_has(avx2 __AVX2__ __FMA__ __F16C__)
machine_has(neon_i8mm __ARM_FEATURE_DOTPROD __ARM_FEATURE_MATMUL_INT8)
machine_has(neon_dotprod __ARM_FEATURE_DOTPROD)
machine_has(neon __aarch64__)

if(failed OR CMAKE_CROSSCOMPILING OR FEWBIT_EMULATE)
  message(STATUS "fewbit: the instruction sets of the target machine are unknown, so all are compiled ${why}")
  return()
endif()

set(targets "")
set(base "")
if(amx)
  set(targets amx avx512)
  set(base avx512bw)
elseif(avx512)
  set(targets avx512)
  set(base avx512bw)
elseif(avx512bw)
  set(targets avx512bw)
elseif(avx2)
  set(targets avx2)
elseif(neon_i8mm)
  set(targets neon_i8mm neon_dotprod)
  set(base neon)
elseif(neon_dotprod)
  set(targets neon_dotprod)
  set(base neon)
elseif(neon)
  set(targets neon)
endif()
list(APPEND targets scalar)

list(JOIN targets ", " names)
message(STATUS "fewbit: compiling for this machine: ${names} (FEWBIT_TARGETS=all compiles every instruction set)")
set(compiled ${targets} ${base})
list(JOIN compiled "|" any)
list(FILTER kernels INCLUDE REGEX "/(${any})(_encode|_recurrent)?[.]cpp$")
list(TRANSFORM targets REPLACE "(.+)" "&\\1::target")
list(JOIN targets ", " addresses)
set_source_files_properties(csrc/dispatch.cpp PROPERTIES COMPILE_DEFINITIONS "FEWBIT_NATIVE_TARGETS=${addresses}")
if(base)
  set_source_files_properties(csrc/targets/${base}.cpp PROPERTIES COMPILE_DEFINITIONS FEWBIT_WITHOUT_PRODUCTS)
endif()
