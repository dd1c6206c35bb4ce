// An instruction set: a table of functions for each concern.
#pragma once
#include "kv_kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"

namespace fewbit {

// A row of k floats to packed bytes; null where a format is only read.
using Encode = void (*)(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out);

// What can be done with rows of one format on one instruction set.
struct Kernels : DecodeKernels, ProductKernels {
  Encode encode;
  KvKernels kv;
};

struct Target {
  const char* name;
  bool (*available)();
  const ProductTable& products;
  const KvTable& kv;
  const RowTable& rows;
  const Encode* encoders;       // in the order of FEWBIT_FORMATS
  const Kernels* (*kernels)();  // in the same order: what the tables have for each format
};

}  // namespace fewbit
