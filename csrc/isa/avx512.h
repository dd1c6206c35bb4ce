// AVX-512 F, BW, DQ, VL and VNNI: 64 bytes, 16 floats.
#include "isa/x86.h"
//
#include "isa/avx512/floats.h"
//
#include "isa/avx512/vnni.h"
//
#include "isa/avx512/all.h"
