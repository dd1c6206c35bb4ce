// NEON with dot products of bytes: 16 bytes, 4 floats.
#include "isa/neon/vectors.h"
//
#include "isa/neon/factors.h"
//
#include "isa/neon/dotprod.h"

using Dots = DotProducts;

#include "isa/neon/all.h"
