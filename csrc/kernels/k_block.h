// A k-block of 256 values: its codes as vectors of bytes, its scales and offsets as vectors of floats.

struct Spot {          // a k-block in memory
  const uint8_t* p;    // its blocks; row placement: its codes
  const uint8_t* row;  // row placement: the row, for the scales
  const Layout* at;
  size_t first;       // row placement: number of its first value in the row
  size_t last_group;  // row placement: the row's last group
};

// The eighth sign that makes the number of minus signs even.
struct EvenSigns {
  uint8_t v[128];
};
inline constexpr EvenSigns even_signs = [] {
  EvenSigns out{};
  for (int s = 0; s < 128; ++s) {
    int ones = 0;
    for (int b = 0; b < 7; ++b) ones += s >> b & 1;
    out.v[s] = static_cast<uint8_t>(s | (ones & 1) << 7);
  }
  return out;
}();

template <Piece at>
FEWBIT_INLINE int read_piece_at(const uint8_t* p) {
  constexpr int byte = at.bit >> 3, shift = at.bit & 7;
  int word;
  if constexpr (shift + at.bits > 8)
    word = load<uint16_t>(p + byte);
  else
    word = p[byte];
  return (word >> shift & ((1 << at.bits) - 1)) << at.dst;
}

// The bits of element i, all positions known while compiling.
template <Ints what, int i>
FEWBIT_INLINE int read_at(const uint8_t* p) {
  return [&]<int... k>(std::integer_sequence<int, k...>) FEWBIT_LAMBDA_INLINE {
    return (read_piece_at<what.piece(k, i)>(p) | ...);
  }(std::make_integer_sequence<int, what.pieces(i)>{});
}

template <Ints what, int i>
FEWBIT_INLINE int number_at(const uint8_t* p) {
  const int code = read_at<what, i>(p);
  if constexpr (what.is_signed) return code - ((code >> (what.bits() - 1)) << what.bits());
  return what.times * code - what.zero;
}

// A bit for each of codes 8 i to 8 i + 7 of a grid that takes its sign away.
template <class F, int i>
FEWBIT_INLINE uint8_t signs_of(const uint8_t* p) {
  constexpr Grid grid = F::codes;
  if constexpr (grid.signs.used == 0)
    return static_cast<uint8_t>(-read_at<grid.shift, i * 8 / grid.shift_every>(p));
  else if constexpr (grid.signs.bits() == 7)
    return even_signs.v[read_at<grid.signs, i>(p)];
  else
    return static_cast<uint8_t>(read_at<grid.signs, i>(p));
}

// What only some instruction sets have is named through this, so that it is looked up only where it is used.
template <class F>
struct Own {
  using type = Isa;
};

template <class F>
struct KBlock {
  using I = typename Own<F>::type;
  using S = Shape<F>;
  using C = Slots<F, Isa::L>;
  using bytes = typename Isa::bytes;
  using f32 = typename Isa::f32;
  static constexpr int W = Isa::W, L = Isa::L, chunks = kBlockK / W, groups = S::groups;
  static constexpr Coding code = coding<F>(Isa::max_unsigned);
  static constexpr int most = [] {  // the largest code, if it is not signed
    if constexpr (F::kind == Kind::planes) {
      if (!code.is_signed) return F::codebook.used > 0 ? F::codebook.high() + code.zero : (1 << F::codes.bits()) - 1;
    }
    return Isa::max_unsigned;
  }();
  static constexpr bool strided = Isa::can_stride && S::worth_striding();
  static constexpr bool unshifted = Isa::can_stride && S::can_be_unshifted(Isa::max_unsigned) && C::scale_vectors == 1;
  static constexpr int pieces = [] {
    if constexpr (F::kind == Kind::planes)
      return F::codes.pieces(0);
    else
      return 0;
  }();

  template <int k, int j, bool strided, bool unshifted>
  static FEWBIT_INLINE bytes plane(const uint8_t* p) {
    constexpr Runs r = runs(j, W, strided);
    if constexpr (S::in_lanes(k, r))
      return Isa::template lanes<S::lanes(k, r), unshifted>(p);
    else if constexpr (Isa::can_stride && S::in_shared_halves(k, r))
      return I::template shared_halves<S::halves(k, r)>(p);
    else
      return Isa::template scattered<S::scatter(k, r)>(p);
  }
  // Two planes that are joined while they are shifted.
  template <int j>
  static constexpr bool in_two() {
    constexpr Runs r = runs(j, W, false);
    return Isa::dots_by_lane && pieces == 2 && S::in_lanes(0, r) && S::in_lanes(1, r);
  }
  template <int j>
  static FEWBIT_INLINE bytes two_planes(const uint8_t* p) {
    constexpr Lanes a = S::lanes(0, runs(j, W, false)), b = S::lanes(1, runs(j, W, false));
    const bytes v = Isa::load(p + a.at[0]), upper = Isa::load(p + b.at[0]);
    if constexpr (b.bits == 1)
      return I::template with_bit<b.shift[0], b.dst>(I::template take<a.shift[0], a.bits, a.dst>(v), upper);
    else
      return I::template with_upper<a.shift[0], a.bits, b.shift[0], b.bits>(v, upper);
  }
  template <int j, bool strided, bool unshifted = false>
  static FEWBIT_INLINE bytes stored(const uint8_t* p) {
    if constexpr (in_two<j>()) return two_planes<j>(p);
    bytes v = plane<0, j, strided, unshifted>(p);
    if constexpr (pieces > 1) v = Isa::either(v, plane<1, j, strided, false>(p));
    if constexpr (pieces > 2) v = Isa::either(v, plane<2, j, strided, false>(p));
    static_assert(pieces <= 3);
    return v;
  }
  // Chunk j of the codes, as `code` says; `unshifted`: not shifted, see `unshift`.
  template <int j, bool strided = false, bool unshifted = false>
  static FEWBIT_INLINE bytes codes(const uint8_t* p) {
    if constexpr (F::kind == Kind::trits) {
      return I::template digits<F::codes, j>(p);
    } else if constexpr (F::kind == Kind::grid) {
      if constexpr (Isa::can_gather)
        return I::template points<F, j, code.zero>(p);
      else
        return picked<j>(p);
    } else {
      bytes v = stored<j, strided, unshifted>(p);
      if constexpr (F::codebook.used > 0) v = Isa::template lookup<F::codebook, code.is_signed ? 0 : code.zero>(v);
      if constexpr (code.flip) v = Isa::flip(v);
      return v;
    }
  }
  // Points of a grid read one by one, and their signs.
  template <int j>
  static FEWBIT_INLINE bytes picked(const uint8_t* p) {
    constexpr Grid grid = F::codes;
    constexpr int count = W / grid.width;
    const int8_t* at[count];
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((at[i] = grid.points + static_cast<size_t>(read_at<grid.index, j * count + i>(p)) * grid.width), ...);
    }(std::make_integer_sequence<int, count>{});
    const uint64_t signs = [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      return (... | (static_cast<uint64_t>(signs_of<F, j * W / 8 + i>(p)) << 8 * i));
    }(std::make_integer_sequence<int, W / 8>{});
    return I::template signed_codes<(grid.shift.used > 0), code.zero>(I::template joined_points<grid.width>(at), signs);
  }

  // The scale or the offset (without its sign) of group g.
  template <int g, bool is_offset>
  static FEWBIT_INLINE float factor(const Spot& s) {
    constexpr const Factor& f = is_offset ? F::offset : F::scale;
    if constexpr (S::row) {
      const size_t value = s.first + g * S::group_size;
      const size_t group = s.at->shift >= 0 ? value >> s.at->shift : value / s.at->group;
      return read_row_factor(f, *s.at, s.row, group < s.last_group ? group : s.last_group);
    } else {
      constexpr int value = g * S::group_size, in_block = value % F::block / F::group;
      const uint8_t* p = s.p + value / F::block * F::bytes;
      float v;
      if constexpr (f.bits.used > 0) {
        v = Isa::half_from(static_cast<uint16_t>(read_at<f.bits, 0>(p)));
      } else {
        v = Isa::template real<f.real>(p + f.at + (f.ints.used > 0 ? 0 : in_block * real_bytes(f.real)));
      }
      if constexpr (f.ints.used > 0) v *= static_cast<float>(number_at<f.ints, in_block>(p));
      return f.unit == 1 ? v : v * f.unit;
    }
  }
  // Every scale and offset, one at a time: for the shapes that no faster way knows.
  static FEWBIT_INLINE void factors_one_by_one(const Spot& s, f32* out) {
    alignas(64) float t[C::vectors * L] = {};
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      ((t[C::slot(g, false)] = factor<g, false>(s)), ...);
      if constexpr (C::offset) ((t[C::slot(g, true)] = factor<g, true>(s)), ...);
    }(std::make_integer_sequence<int, groups>{});
    for (int v = 0; v < C::vectors; ++v) out[v] = Isa::loadf(t + v * L);
  }
  // The same out of line: rarely needed, and loops around what is needed stay short.
  static __attribute__((noinline)) void factors_to(Spot s, float* out) {
    f32 factors[C::vectors];
    factors_one_by_one(s, factors);
    for (int v = 0; v < C::vectors; ++v) Isa::storef(out + v * L, factors[v]);
  }
  // Row placement: eight neighbouring scales at once, where that does not reach past the row.
  static FEWBIT_INLINE void factors_of_row(const Spot& s, f32* out) {
    constexpr Real real = F::scale.real;
    constexpr bool points = F::offset.ints.used > 0;  // zero points
    constexpr size_t last_field = C::offset, wide = real_bytes(C::offset ? (points ? Real::u8 : F::offset.real) : real);
    const uint8_t* scales = s.row + s.at->field_at[0];
    const uint8_t* offsets = s.row + s.at->field_at[1];
    const size_t group = s.last_group == 0 ? 0 : s.at->shift >= 5 ? s.first >> s.at->shift : ~size_t{0};
    if (group > s.last_group || s.at->field_at[last_field] + (group + 8) * wide > s.at->row_bytes) {
      if (s.last_group > 0) {
        alignas(64) float t[C::vectors * L];
        factors_to(s, t);
        for (int v = 0; v < C::vectors; ++v) out[v] = Isa::loadf(t + v * L);
        return;
      }
      return Isa::deal(Isa::splat8(factor<0, false>(s)), Isa::splat8(C::offset ? factor<0, C::offset>(s) : 0), 0, out,
                       std::bool_constant<C::offset>{});
    }
    const auto d = Isa::template eight<real>(scales + group * real_bytes(real));
    const int shift = s.at->shift < 8 ? s.at->shift - 5 : 3;
    if constexpr (!C::offset) {
      Isa::deal(d, d, shift, out, std::false_type{});
    } else if constexpr (points) {
      constexpr Real whole = F::offset.ints.is_signed ? Real::i8 : Real::u8;
      Isa::deal(d, Isa::mul8(d, Isa::template eight<whole>(offsets + group)), shift, out, std::true_type{});
    } else {
      Isa::deal(d, Isa::template eight<F::offset.real>(offsets + group * real_bytes(F::offset.real)), shift, out,
                std::true_type{});
    }
  }
  // `small` gives the integers as stored; what they stand for is `times` as much less `zero`, in units.
  template <int v>
  static FEWBIT_INLINE f32 of_unit(f32 x) {
    constexpr Ints what = v < C::scale_vectors ? F::scale.ints : F::offset.ints;
    constexpr float unit = F::scale.unit;
    if constexpr (what.times == 1 && unit == 1) return x;
    return Isa::fma(x, Isa::splat(what.times * unit), Isa::splat(what.times == 1 ? 0 : -what.zero * unit));
  }
  // `transposed`: in the transposed order, not shifted down, too large by what `lift` says.
  template <int v, bool transposed>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    if constexpr (transposed)
      return of_unit<v>(I::template small<C::small(v).transposed(), true>(p));
    else
      return of_unit<v>(Isa::template small<C::small(v)>(p));
  }
  static constexpr int lift(int v) { return C::is_small() ? 1 << C::small(v).unshifted_by() : 1; }
  template <bool transposed = false>
  static FEWBIT_INLINE void factors(const Spot& s, f32* out) {
    if constexpr (C::is_small()) {
      f32 d, dmin;
      if constexpr (F::scale.bits.used > 0)
        d = dmin = Isa::splat(Isa::half_from(static_cast<uint16_t>(read_at<F::scale.bits, 0>(s.p))));
      else if constexpr (C::paired && C::offset)
        d = dmin = Isa::half_pair(s.p + F::scale.at);
      else if constexpr (C::offset && F::offset.at == F::scale.at + 2)
        Isa::two_halves(s.p + F::scale.at, d, dmin);
      else
        d = Isa::half(s.p + F::scale.at), dmin = C::offset ? Isa::half(s.p + F::offset.at) : d;
      [&]<int... v>(std::integer_sequence<int, v...>) FEWBIT_LAMBDA_INLINE {
        ((out[v] = Isa::mul(small<v, transposed>(s.p), v < C::scale_vectors ? d : dmin)), ...);
      }(std::make_integer_sequence<int, C::vectors>{});
    } else if constexpr (C::is_strided()) {
      static_assert(F::scale.at == 0 || F::block == kBlockK);  // what is read with the scales stays inside the k-block
      Isa::template strided<F::scale.real, F::block, F::bytes, C::offset>(s.p + F::scale.at, out);
    } else if constexpr (C::is_quads()) {
      Isa::template quads<F::scale.real, F::bytes>(s.p + F::scale.at, out);
    } else if constexpr (S::row) {
      factors_of_row(s, out);
    } else {
      factors_one_by_one(s, out);
    }
  }
  // What scales are multiplied by if codes are left unshifted.
  static FEWBIT_INLINE f32 unshift() {
    alignas(64) static constexpr auto by = [] {
      std::array<float, L> out{};
      for (int l = 0; l < L; ++l)
        out[l] = 1.0f / (1 << (unshifted ? S::unshifted_by(C::paired ? l / 2 : l % groups) : 0));
      return out;
    }();
    return Isa::loadf(by.data());
  }
  // For each dot lane of chunk j, where its scale is in vector `vector_of(j)`.
  static constexpr int vector_of(int j) { return strided ? 0 : C::slot(j * W / S::group_size, false) / L; }
  static constexpr std::array<int, 16> spread(int j, bool is_strided = strided) {
    std::array<int, 16> out{};
    for (int l = 0; l < L; ++l)
      out[l] = C::slot((runs(j, W, is_strided).first[l / 4] + 4 * (l % 4)) / S::group_size, false) % L;
    return out;
  }
};

// Bytes of the `rest` values that are no whole k-block; row placement: of their codes.
template <class F>
constexpr size_t tail_bytes(size_t rest) {
  if constexpr (Shape<F>::row)
    return (rest + kGranule - 1) / kGranule * kGranule * F::codes.bits() / 8;
  else
    return (rest + F::block - 1) / F::block * F::bytes;
}

// The last values of a row, followed by zeros, in `copy`.
template <class F>
const uint8_t* padded_tail(const uint8_t* p, size_t rest, uint8_t* copy, size_t size) {
  std::memset(copy, 0, size);
  std::memcpy(copy, p, tail_bytes<F>(rest));
  return copy;
}

// Calls f(k-block number, spot) for each k-block of a row; the last one may be a copy padded with zeros.
template <class F, class Fn>
FEWBIT_INLINE void each_k_block(const uint8_t* row, size_t k, const Layout& at, Fn&& f) {
  using S = Shape<F>;
  constexpr size_t step = S::k_block_bytes();
  Spot s{row, row, &at, 0, S::row && k ? (k - 1) / at.group : 0};
  alignas(64) uint8_t copy[step + 64];
  for (size_t i = 0; i * kBlockK < k; ++i, s.p += step, s.first += kBlockK) {
    if ((i + 1) * kBlockK > k) s.p = padded_tail<F>(s.p, k % kBlockK, copy, sizeof copy);
    f(i, s);
  }
}

// Calls f(spot) for one k-block of a row; the last one may be a copy padded with zeros.
template <class F, class Fn>
FEWBIT_INLINE void with_k_block(const uint8_t* row, size_t k_block, size_t k, const Layout& at, Fn&& f) {
  using S = Shape<F>;
  Spot s{row + k_block * S::k_block_bytes(), row, &at, k_block * kBlockK, S::row && k ? (k - 1) / at.group : 0};
  alignas(64) uint8_t copy[S::k_block_bytes() + 64];
  if ((k_block + 1) * kBlockK > k) s.p = padded_tail<F>(s.p, k % kBlockK, copy, sizeof copy);
  f(s);
}
