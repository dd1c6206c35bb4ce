// NEON with dot products and matrix products of bytes: 16 bytes, 4 floats.
#include "isa/neon/vectors.h"
//
#include "isa/neon/factors.h"
//
#include "isa/neon/dotprod.h"
//
#include "isa/neon/i8mm.h"
//
#include "isa/neon/all.h"
