// What products and attention on matrix tiles share, in the order in which they build on each other. Included inside
// the namespace of the instruction set.
#include "isa/avx512.h"
//
#include "kernels/k_block.h"
//
#include "kernels/reals.h"
//
#include "kernels/amx/grid_tables.h"
//
#include "kernels/activations.h"
#include "kernels/grids.h"
//
#include "kernels/gemv.h"
//
#include "kernels/interleaved.h"
//
#include "kernels/amx/to_tiles.h"
//
#include "kernels/amx/tiles.h"
//
#include "kernels/amx/skinny.h"
