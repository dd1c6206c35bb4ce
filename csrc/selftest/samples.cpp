// Weights, inputs and shapes that the checks are made with.
#include "selftest/samples.h"

#include <cmath>
#include <cstring>

#include "formats.generated.h"
#include "formats/write.h"

namespace fewbit::selftest {
namespace {

float random_scale(Random& random) { return random.uniform(0.002f, 0.01f); }

// A scale whose bits lie apart.
void put_apart(const Ints& what, float scale, uint8_t* block) {
  for (int k = 0; k < what.pieces(0); ++k) {
    const Piece piece = what.piece(k, 0);
    for (int bit = piece.bit; bit < piece.bit + piece.bits; ++bit) {
      block[bit / 8] = static_cast<uint8_t>(block[bit / 8] & ~(1 << bit % 8));
    }
    write_piece(block, piece, f32_to_f16(scale));
  }
}

void put_factor(Random& random, const Factor& f, int count, uint8_t* block) {
  if (f.bits.used > 0) return put_apart(f.bits, random_scale(random), block);
  for (int i = 0; i < count; ++i) write_real(f.real, block + f.at + i * real_bytes(f.real), random_scale(random));
}

template <class F>
void fill_blocks(Random& random, const Layout& at, uint8_t* row) {
  for (uint8_t* block = row; block < row + at.row_bytes; block += F::bytes) {
    put_factor(random, F::scale, F::scale.ints.used > 0 ? 1 : F::block / F::group, block);
    if constexpr (F::offset.present) {
      put_factor(random, F::offset, F::offset.ints.used > 0 ? 1 : F::block / F::group, block);
    }
  }
}

template <class F>
void fill_row(Random& random, size_t k, const Layout& at, uint8_t* row) {
  const size_t groups = (k + at.group - 1) / at.group;
  const auto put = [&](const Factor& f) {
    uint8_t* to = row + at.field_at[f.at];
    for (size_t g = 0; g < groups; ++g) write_real(f.real, to + g * real_bytes(f.real), random_scale(random));
  };
  put(F::scale);
  if constexpr (F::offset.present && F::offset.ints.used == 0) put(F::offset);
}

// Scales in rows whose other bytes are random.
template <class F>
void fill(Random& random, size_t k, const Layout& at, uint8_t* row) {
  if constexpr (F::kind == Kind::scalar) {
    const bool whole = F::real == Real::i8 || F::real == Real::i16 || F::real == Real::i32 || F::real == Real::i64;
    for (size_t i = 0; i < k; ++i) write_real(F::real, row + i * F::bytes, random.normal() * (whole ? 40 : 1));
  } else if constexpr (F::placement == Placement::row) {
    fill_row<F>(random, k, at, row);
  } else {
    fill_blocks<F>(random, at, row);
  }
}

struct Record {
  void (*fill)(Random&, size_t, const Layout&, uint8_t*);
  bool by_row;
};
#define FEWBIT_RECORD(F) {fill<formats::F>, formats::F::placement == Placement::row},
const Record kRecords[] = {FEWBIT_FORMATS(FEWBIT_RECORD)};
#undef FEWBIT_RECORD

float power(float base, float exponent) { return static_cast<float>(std::pow(base, exponent)); }

float one_value(Random& random, const char* kind, float size) {
  const float normal = random.normal();
  switch (kind[0]) {
    case 'n': return normal;
    case 'h': return 0.02f * normal / (0.01f + random.uniform());  // heavy
    case 'b': return std::fmax(std::fmin(normal * power(10, 30 + 8.5f * size), 3e38f), -3e38f);
    case 'o': return normal * power(10, 4 + 3 * size);
    case 't': return normal * power(10, -5 - 30 * size);
    case 's': return normal * power(10, -20 - 7 * size) * 1e-17f;
    case 'w': return static_cast<float>(static_cast<int>(random.below(511)) - 255) * 0.5f;
    case 'p': return random.uniform(3, 4);
    case 'm': return random.uniform(-1001, -1000);
    default: return 0;
  }
}

constexpr const char* kKinds[kValueKinds] = {"normal",   "heavy",    "big",        "over f16", "tiny",     "subnormal",
                                             "wholes/2", "positive", "minus 1000", "zero",     "constant", "one hot"};

}  // namespace

const char* value_kind_name(size_t kind) { return kKinds[kind]; }

Floats values_of_kind(Random& random, size_t kind, size_t count) {
  const std::string_view name = kKinds[kind];
  const float size = random.uniform();
  Floats out(count, name == "constant" ? random.normal() * power(10, 12 * size - 6) : 0.0f);
  if (name == "one hot" && count > 0) out[random.below(count)] = random.normal();
  if (name == "constant" || name == "one hot") return out;
  for (float& v : out) v = one_value(random, kKinds[kind], size);
  return out;
}

Floats normals(Random& random, size_t count) { return values_of_kind(random, 0, count); }

Bytes random_bytes(Random& random, size_t count) {
  Bytes out(count);
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t bits = random.next();
    std::memcpy(out.data() + i, &bits, count - i < 8 ? count - i : 8);
  }
  return out;
}

Bytes random_rows(Random& random, size_t format, size_t n, size_t k, const Layout& at) {
  Bytes out = random_bytes(random, n * at.row_bytes);
  for (size_t r = 0; r < n; ++r) kRecords[format].fill(random, k, at, out.data() + r * at.row_bytes);
  return out;
}

bool has_groups(size_t format) { return kRecords[format].by_row; }

size_t random_group(Random& random, size_t format) {
  constexpr size_t groups[] = {0, 6, 16, 32, 32, 64, 96, 128};
  return has_groups(format) ? random.one_of(groups) : 0;
}

Floats decoded(const Target& scalar, size_t format, const Bytes& rows, size_t n, size_t k, const Layout& at) {
  Floats out(n * k);
  const Kernels& kernels = scalar.kernels()[format];
  for (size_t r = 0; r < n; ++r) kernels.decode(rows.data() + r * at.row_bytes, k, at, out.data() + r * k);
  return out;
}

}  // namespace fewbit::selftest
