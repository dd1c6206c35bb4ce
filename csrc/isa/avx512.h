// AVX-512 F, BW, DQ, VL and VNNI: 64 bytes, 16 floats. What an instruction set has to offer, each part in a file of its
// own, on top of those before it.
#if defined(FEWBIT_EMULATE)
#include "isa/emulated_vnni.h"
#endif
#include "isa/avx512/floats.h"
//
#include "isa/avx512/codes.h"
//
#include "isa/avx512/grids.h"
//
#include "isa/avx512/factors.h"
//
#include "isa/avx512/turned.h"
//
#include "isa/avx512/activations.h"
//
#include "isa/avx512/kv.h"

struct Isa : Attention {};
