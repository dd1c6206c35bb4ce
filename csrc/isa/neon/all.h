// What NEON has to offer beside dot products, each part on top of those before it. The first builds on `Dots`.
#include "isa/neon/grids.h"
//
#include "isa/neon/interleaved.h"
//
#include "isa/neon/by_lane.h"
//
#include "isa/neon/kv.h"

struct Isa : Attention {};
