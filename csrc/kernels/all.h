// The kernels of products, in the order in which they build on each other. Included once inside the namespace of each
// instruction set, after its `Isa`: these files have no include guards.
#include "kernels/k_block.h"
//
#include "kernels/reals.h"
#include "kernels/row_panel.h"
//
#include "kernels/activations.h"
//
#include "kernels/grid_words.h"
//
#include "kernels/grids.h"
//
#include "kernels/gemv.h"
//
#include "kernels/interleaved.h"
//
#include "kernels/interleaved_gemv.h"
#include "kernels/lane_codes.h"
//
#include "kernels/lane_columns.h"
//
#include "kernels/by_lane.h"
//
#include "kernels/by_lane_panels.h"
#include "kernels/micro_kernel.h"
#include "kernels/probe.h"
#include "kernels/trits.h"
