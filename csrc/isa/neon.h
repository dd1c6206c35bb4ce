// NEON, ARMv8.0: 16 bytes, 4 floats.
#include "isa/neon/vectors.h"
//
#include "isa/neon/factors.h"
//
#include "isa/neon/dots.h"
//
#include "isa/neon/all.h"
