// AVX2, FMA, F16C: 32 bytes, 8 floats. Each part in a file of its own, on top of those before it.
#include "isa/x86.h"
//
#include "isa/avx2/vectors.h"
#include "isa/pairs.h"
//
#include "isa/avx2/grids.h"
//
#include "isa/avx2/interleaved.h"

struct Isa : SideBySide {};
