// What AVX-512 has to offer, each part in a file of its own, on top of those before it. The first builds on `Dots`.
#include "isa/avx512/codes.h"
//
#include "isa/avx512/grids.h"
//
#include "isa/avx512/factors.h"
//
#include "isa/avx512/transposed.h"
//
#include "isa/avx512/activations.h"
//
#include "isa/avx512/kv.h"

struct Isa : Attention {};
