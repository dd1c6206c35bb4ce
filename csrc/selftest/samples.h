// What kernels are given: rows of every format, and floats that they may stumble over.
#pragma once
#include <vector>

#include "dispatch.h"
#include "selftest/random.h"

namespace fewbit::selftest {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

// Random codes with scales of about one size, so that sums can be compared.
Bytes random_rows(Random& random, size_t format, size_t n, size_t k, const Layout& at);
Bytes random_bytes(Random& random, size_t count);
// Whether the number of values that share a scale can be chosen.
bool has_groups(size_t format);
// One of the numbers that are in use for it, or 0, the whole row.
size_t random_group(Random& random, size_t format);

Floats normals(Random& random, size_t count);
constexpr size_t kValueKinds = 12;
const char* value_kind_name(size_t kind);
Floats values_of_kind(Random& random, size_t kind, size_t count);

// Decoded by the scalar kernels, which are compared with NumPy elsewhere.
Floats decoded(const Target& scalar, size_t format, const Bytes& rows, size_t n, size_t k, const Layout& at);

}  // namespace fewbit::selftest
