// Rows of floats to packed bytes: src/fewbit/formats/encode.py in native code, byte for byte.
#include "kernels/wide.h"
//
#include "kernels/search.h"
//
#include "kernels/rules.h"
#include "kernels/shared.h"
//
#include "kernels/grid_search.h"

namespace encoding {

// Codes as bits, before they are packed.
struct Codes {
  alignas(64) uint8_t v[kBlockK];
};

template <Plane plane, int dst>
static FEWBIT_INLINE void pack_runs(const uint8_t* codes, int count, uint8_t* out) {
  constexpr int run = plane.digits[0].size, per = plane.digits[1].size, mask = (1 << plane.bits) - 1;
  out += plane.start / 8;
  for (int first = 0; first < count; first += run * per, out += run) {
    for (int r = 0; r < run; ++r) {
      uint8_t byte = 0;
      for (int k = 0; k < per; ++k) {
        const int code = codes[first + k * run + r] >> dst & mask;
        byte = static_cast<uint8_t>(byte | code << (plane.bits * k));
      }
      out[r] = byte;
    }
  }
}

constexpr bool is_runs(const Plane& p) {
  return p.used == 3 && p.start % 8 == 0 && p.digits[0].stride == 8 && p.digits[1].stride == p.bits &&
         p.digits[1].size * p.bits == 8 && p.digits[2].stride == 8 * p.digits[0].size;
}

// `count` codes from the first of a block, or of a granule of a row; the bytes are still 0.
template <class F, int p = 0, int dst = 0>
static FEWBIT_INLINE void pack_codes(const uint8_t* codes, int count, uint8_t* out) {
  if constexpr (F::kind == Kind::trits) {
    write_trits(F::codes, out, codes);
  } else if constexpr (p < F::codes.used) {
    constexpr Plane plane = F::codes.planes[p];
    if constexpr (is_runs(plane)) {
      pack_runs<plane, dst>(codes, count, out);
    } else {
      for (int i = 0; i < count; ++i) write_piece(out, {plane.bit(i), plane.bits, dst}, codes[i]);
    }
    pack_codes<F, p + 1, dst + plane.bits>(codes, count, out);
  }
}

// Where each number first stands in the codebook, by number + 128.
template <class F>
inline constexpr Codes book_codes = [] {
  Codes out = {};
  for (int i = F::codebook.used - 1; i >= 0; --i) out.v[F::codebook.values[i] + 128] = static_cast<uint8_t>(i);
  return out;
}();

// The codes of up to 256 values, with the scale that was found.
template <class F>
void nearest_codes(const Chunk& c, const Choice& found, uint8_t* codes) {
  using T = Levels<F>;
  constexpr Ints ints = T::ints();
  const Wide back = splat(inverse(found.scale)), offset = splat(found.offset);
  const Wide low = splat(found.low), high = splat(found.high);
  const Wide shift = splat(T::zero_point ? T::low - found.low : 0);
  for (int i = 0; i < c.n; i += kWideLanes) {
    const Wide y = T::free_offset ? load_wide(c.x + i) - offset : load_wide(c.x + i);
    const Wholes q = truncated(nearest<F>(y * back, low, high) + shift);
    int32_t numbers[kWideLanes];
    std::memcpy(numbers, &q, sizeof numbers);
    for (int l = 0; l < kWideLanes; ++l) {
      if constexpr (T::has_book) {
        codes[i + l] = book_codes<F>.v[numbers[l] + 128];
      } else {
        codes[i + l] = static_cast<uint8_t>(T::is_trits ? numbers[l] + 1 : raw_code(ints, numbers[l]));
      }
    }
  }
}

template <class F>
void write_sums(const uint8_t* codes, float d, uint8_t* out) {
  for (int g = 0; g < F::block / F::sums.every; ++g) {
    int total = 0;
    for (int i = 0; i < F::sums.every; ++i) total += static_cast<int8_t>(codes[g * F::sums.every + i]);
    const float sum = static_cast<float>(total);
    write_real(F::sums.real, out + F::sums.at + g * real_bytes(F::sums.real),
               F::sums.real == Real::i16 ? sum : sum * d);
  }
}

// Values and weights of a block, brought near 1; padding has no weight.
template <class F>
void scale_block(const float* x, int n, const float* importance, float back, float* xs, float* ws) {
  const float weight_back = importance ? 1 / unit_of(greatest(importance, static_cast<size_t>(n))) : 1;
  for (int i = 0; i < F::block; ++i) xs[i] = x[i] * back;
  for (int i = 0; i < F::block; ++i) ws[i] = 0;
  for (int i = 0; i < n; ++i) {
    const float w = importance ? importance[i] * weight_back : 1;
    ws[i] = w > kLeastWeight ? w : kLeastWeight;
  }
}

template <class F>
struct BlockEncoder {
  using T = Levels<F>;
  static constexpr int groups = F::block / F::group;

  alignas(64) float padded[F::block];
  alignas(64) float xs[F::block], ws[F::block];
  Codes codes;

  // A block of n values; `importance` has as many.
  void search(const float* x, int n, const float* importance, uint8_t* out) {
    const float unit = unit_of(greatest(x, F::block)), back = 1 / unit;
    scale_block<F>(x, n, importance, back, xs, ws);
    Group g[groups];
    Choice found[groups];
    for (int j = 0; j < groups; ++j) {
      g[j] = {xs + j * F::group, ws + j * F::group, F::group, 1, 1, false, 0, 0, 0, 0, 0, 0, 0};
      prepare<F>(g[j]);
      found[j] = search_group<F>(g[j], unit, back);
    }
    if constexpr (T::shares)
      share(g, found, unit, back, out);
    else
      write_found(found, unit, out);
    Chunk c;
    for (int j = 0; j < groups; ++j) {
      c.load(g[j], 0);
      nearest_codes<F>(c, found[j], codes.v + j * F::group);
    }
    if constexpr (F::sums.at >= 0) write_sums<F>(codes.v, found[0].scale * unit, out);
  }
  void share(const Group* g, Choice* found, float unit, float back, uint8_t* out) {
    SharedSearch<F> search{g, unit, back, {}, {}, {}, {}};
    Shared best;
    search.run(found, best);
    write_real(F::scale.real, out + F::scale.at, best.d * unit);
    if constexpr (F::offset.present) write_real(F::offset.real, out + F::offset.at, best.dmin * unit);
    for (int j = 0; j < groups; ++j) {
      found[j] = {best.d * best.scale[j], 0 - best.dmin * best.offset[j], T::low, T::high};
      write_int(F::scale.ints, out, j, static_cast<int>(best.scale[j]));
      if constexpr (F::offset.present) write_int(F::offset.ints, out, j, static_cast<int>(best.offset[j]));
    }
  }
  static void write_found(const Choice* found, float unit, uint8_t* out) {
    for (int j = 0; j < groups; ++j) {
      write_real(F::scale.real, out + F::scale.at + j * real_bytes(F::scale.real), found[j].scale * unit);
      if constexpr (F::offset.present) {
        write_real(F::offset.real, out + F::offset.at + j * real_bytes(F::offset.real), found[j].offset * unit);
      }
    }
  }
  void rule(const float* x, int n, uint8_t* out) {
    const Found found = BlockRule<F>::run(x, n, codes.v);
    write_real(F::scale.real, out + F::scale.at, found.scale);
    if constexpr (F::offset.present) write_real(F::offset.real, out + F::offset.at, found.offset);
    if constexpr (F::sums.at >= 0) write_sums<F>(codes.v, found.scale, out);
  }
  void run(const float* x, size_t k, const float* importance, uint8_t* out) {
    for (size_t first = 0; first < k; first += F::block, out += F::bytes) {
      const float* values = x + first;
      const int n = static_cast<int>(k - first < F::block ? k - first : F::block);
      if (n < F::block) {
        for (int i = 0; i < F::block; ++i) padded[i] = values[i < n ? i : n - 1];
        values = padded;
      }
      if constexpr (F::rule == Rule::search) {
        search(values, n, importance ? importance + first : nullptr, out);
      } else {
        if (importance)
          search(values, n, importance + first, out);
        else
          rule(values, n, out);
      }
      pack_codes<F>(codes.v, F::block, out);
    }
  }
};

template <class F>
struct GridEncoder {
  GridSearch<F> search;
  alignas(64) float padded[F::block];

  void run(const float* x, size_t k, const float* importance, uint8_t* out) {
    for (size_t first = 0; first < k; first += F::block, out += F::bytes) {
      const int n = static_cast<int>(k - first < F::block ? k - first : F::block);
      for (int i = 0; i < F::block; ++i) padded[i] = x[first + static_cast<size_t>(i < n ? i : n - 1)];
      search.unit = unit_of(greatest(padded, F::block));
      search.back = 1 / search.unit;
      scale_block<F>(padded, n, importance ? importance + first : nullptr, search.back, search.y, search.w);
      search.run(out);
    }
  }
};

template <class F>
struct RowEncoder {
  using T = Levels<F>;
  static constexpr int bits = F::codes.bits();

  // Codes of values from `first` on. A granule of the row is as many whole bytes, in its own order.
  static FEWBIT_INLINE void put(const uint8_t* codes, size_t first, int n, uint8_t* out) {
    int i = 0;
    if (first % kGranule == 0) {
      i = n / kGranule * kGranule;
      pack_codes<F>(codes, i, out + first * bits / 8);
    }
    for (; i < n; ++i) {
      const size_t at = first + static_cast<size_t>(i);
      const Piece piece = F::codes.piece(0, static_cast<int>(at % kGranule));
      write_piece(out + at / kGranule * kGranule * bits / 8, piece, codes[i]);
    }
  }
  static void write_factors(const Found& f, const Layout& at, size_t g, uint8_t* out) {
    write_real(F::scale.real, out + at.field_at[F::scale.at] + g * real_bytes(F::scale.real), f.scale);
    if constexpr (T::free_offset) {
      write_real(F::offset.real, out + at.field_at[F::offset.at] + g * real_bytes(F::offset.real), f.offset);
    }
    if constexpr (T::zero_point) out[at.field_at[F::offset.ints_at] + g] = static_cast<uint8_t>(f.zero);
  }
  static void rule(const float* x, size_t first, size_t n, const Layout& at, size_t group, uint8_t* out) {
    const Found found = RowRule<F>::find(x + first, n);
    write_factors(found, at, group, out);
    Codes codes;
    for (size_t i = 0; i < n; i += kBlockK) {
      const int count = static_cast<int>(n - i < kBlockK ? n - i : kBlockK);
      for (int j = 0; j < count; ++j) {
        const int code = RowRule<F>::code(x[first + i + static_cast<size_t>(j)], found);
        codes.v[j] = static_cast<uint8_t>(raw_code(F::codes, code));
      }
      put(codes.v, first + i, count, out);
    }
  }
  static void search(const float* x, const float* importance, size_t first, size_t n, const Layout& at, size_t group,
                     uint8_t* out) {
    const float unit = unit_of(greatest(x + first, n)), back = 1 / unit;
    const float weight_back = 1 / unit_of(greatest(importance + first, n));
    Group g = {x + first, importance + first, n, back, weight_back, true, 0, 0, 0, 0, 0, 0, 0};
    prepare<F>(g);
    const Choice found = search_group<F>(g, unit, back);
    write_factors({found.scale * unit, found.offset * unit, static_cast<int>(T::low - found.low)}, at, group, out);
    Codes codes;
    Chunk c = {};
    for (size_t i = 0; i < n; i += kBlockK) {
      c.load(g, i);
      nearest_codes<F>(c, found, codes.v);
      put(codes.v, first + i, c.n, out);
    }
  }
  static void run(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out) {
    size_t group = 0;
    for (size_t first = 0; first < k; first += at.group, ++group) {
      const size_t n = k - first < at.group ? k - first : at.group;
      if (importance)
        search(x, importance, first, n, at, group, out);
      else
        rule(x, first, n, at, group, out);
    }
  }
};

}  // namespace encoding

// A row of k floats to at.row_bytes bytes; `importance` is null or a weight for each value.
template <class F>
void encode_row(const float* x, size_t k, const float* importance, const Layout& at, uint8_t* out) {
  if constexpr (F::kind == Kind::scalar) {
    for (size_t i = 0; i < k; ++i) write_real(F::real, out + i * F::bytes, x[i]);
  } else {
    std::memset(out, 0, at.row_bytes);
    if constexpr (F::placement == Placement::row) {
      encoding::RowEncoder<F>::run(x, k, importance, at, out);
    } else if constexpr (F::kind == Kind::grid) {
      encoding::GridEncoder<F> encoder;
      encoder.run(x, k, importance, out);
    } else {
      encoding::BlockEncoder<F> encoder;
      encoder.run(x, k, importance, out);
    }
  }
}
