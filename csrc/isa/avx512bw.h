// AVX-512 F, BW, DQ and VL: 64 bytes, 16 floats.
#include "isa/x86.h"
//
#include "isa/avx512/floats.h"
#include "isa/pairs.h"

struct Dots : Pairs<Floats> {
  static constexpr int micro_columns = 6, micro_sets = 2;
};

#include "isa/avx512/all.h"
