// 256 activations in 8 bits, with a scale for every 32 and the sums that kernels of any vector width want.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fewbit {

struct alignas(64) Activation {
  int8_t q[256];           // -127..127
  int8_t strided[256];     // the same 16 at a time in another order, see `runs` in kernels/shapes.h
  int8_t transposed[256];  // the same four at a time in the order of `transposed_group` in kernels/shapes.h
  int8_t grid[256];  // the same eight at a time, the four eights of every 32 in the same two lanes of four vectors
  float d16[16];     // the scale of every 16 values
  float s16[16];     // scale times the sum of every 16
  float d_transposed[16];  // the scales in the transposed order
  float s_transposed[16];  // the sums in the transposed order
  float pair32[16];        // scale times the sum of every 32, twice each
  float d32[8];            // the scale of every 32
  float s32[8];            // scale times the sum of every 32
  int16_t sums[16];        // the sum of every 16 codes
};
static_assert(sizeof(Activation) == 1472);

}  // namespace fewbit
