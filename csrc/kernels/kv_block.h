// Blocks of 32 values of rows of the KV cache, read as they are packed. A row is what one head keeps of one token:
// whole blocks of 32 values, or plain numbers.

template <class F>
struct KvBlock {
  using I = typename Own<F>::type;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, vectors = 32 / L;
  static constexpr bool plain = F::kind == Kind::scalar;
  static constexpr int values = 32, bytes = plain ? 32 * F::bytes : F::bytes;

  static constexpr Run16 run(int k, int r) {
    Run16 out;
    if constexpr (!plain) {
      const Piece first = F::codes.piece(k, 16 * r);
      out = {first.bit / 8, first.bit % 8, first.bits, first.dst, false, true};
      out.in_bits = first.bits == 1 && F::codes.piece(k, 16 * r + 1).bit == first.bit + 1;
      for (int i = 1; i < 16; ++i) {
        const int step = out.in_bits ? 1 : 8;
        if (F::codes.piece(k, 16 * r + i).bit != first.bit + i * step) out.fits = false;
      }
      if (out.in_bits && out.shift != 0) out.fits = false;
      if (!out.in_bits && out.at + 16 > F::bytes) out.fits = false;
    }
    return out;
  }
  static constexpr bool can() {
    if constexpr (plain) {
      return is_plain<F>();
    } else if constexpr (F::kind == Kind::planes && F::placement == Placement::block && F::block == 32) {
      if (F::group != 32 || F::scale.ints.used > 0 || F::scale.bits.used > 0 || F::codes.pieces(0) > 2) return false;
      if (F::scale.unit != 1) return false;
      for (int k = 0; k < F::codes.pieces(0); ++k) {
        if (!run(k, 0).fits || !run(k, 1).fits) return false;
      }
      return !F::offset.present || F::offset.ints.used == 0;
    } else {
      return false;
    }
  }

  // Two codes of four bits to a byte: all numbers that they can stand for are in one vector.
  static constexpr bool by_table = [] {
    if constexpr (can() && !plain && Isa::has_tables)
      return F::codes.bits() == 4 && F::codes.pieces(0) == 1 && run(0, 0).at == run(0, 1).at && run(0, 0).shift == 0;
    else
      return false;
  }();
  static constexpr bool shifts_table = by_table && F::offset.present;
  alignas(64) static constexpr auto numbers = [] {
    std::array<float, 16> out{};
    if constexpr (by_table) {
      for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<float>(F::codebook.used > 0 ? F::codebook.values[i] : F::codes.times * i - F::codes.zero);
      }
    }
    return out;
  }();

  static constexpr bool is_signed = F::codebook.used > 0 || F::codes.is_signed;
  static constexpr bool shifts = F::offset.present || (!is_signed && F::codes.zero != 0);

  // What codes are multiplied by, and what is added then.
  static FEWBIT_INLINE void factors(const uint8_t* p, f32& d, f32& m) {
    d = I::template splat_real<F::scale.real>(p + F::scale.at);
    m = is_signed || by_table ? Isa::zero() : Isa::mul(d, Isa::splat(-static_cast<float>(F::codes.zero)));
    if constexpr (F::offset.present) {
      const f32 offset = I::template splat_real<F::offset.real>(p + F::offset.at);
      m = Isa::fma(offset, Isa::splat(static_cast<float>(F::offset_sign)), m);
    }
    if constexpr (!by_table && F::codes.times != 1) d = Isa::mul(d, Isa::splat(static_cast<float>(F::codes.times)));
  }
  template <int r>
  static FEWBIT_INLINE void codes_to_floats(const uint8_t* p, f32 d, f32 m, f32* out) {
    auto codes = I::template run<run(0, r)>(p);
    if constexpr (F::codes.pieces(0) > 1) codes = I::either16(codes, I::template run<run(1, r)>(p));
    if constexpr (F::codebook.used > 0) codes = I::template lookup16<F::codebook>(codes);
    f32 x[vectors / 2];
    I::template widen16<is_signed>(codes, x);
    for (int v = 0; v < vectors / 2; ++v) out[v] = shifts ? Isa::fma(x[v], d, m) : Isa::mul(x[v], d);
  }
  // The values of `count` vectors, number `part` of such parts of the block; 16 values if they are not plain.
  template <int count, int part>
  static FEWBIT_INLINE void read_part(const uint8_t* p, f32* out) {
    if constexpr (plain) {
      read_reals<F, count>(p + part * count * L * F::bytes, out);
    } else {
      static_assert(count * L == 16);
      f32 d, m;
      factors(p, d, m);
      codes_to_floats<part>(p, d, m, out);
    }
  }
  // 32 values.
  static FEWBIT_INLINE void read(const uint8_t* p, f32* out) {
    if constexpr (plain) {
      read_reals<F, vectors>(p, out);
    } else {
      f32 d, m;
      factors(p, d, m);
      if constexpr (by_table) {
        const f32 table =
            shifts_table ? Isa::fma(I::loadf(numbers.data()), d, m) : Isa::mul(I::loadf(numbers.data()), d);
        return I::nibbles(table, p + run(0, 0).at, out);
      }
      codes_to_floats<0>(p, d, m, out);
      codes_to_floats<1>(p, d, m, out + vectors / 2);
    }
  }
  // Calls f(p), or f(a copy) if the row ends before the block does, padded with zeros; `whole`: it never does.
  template <bool whole, class Fn>
  static FEWBIT_INLINE void padded(const uint8_t* p, size_t values_left, Fn&& f) {
    if constexpr (plain && !whole) {
      if (values_left < 32) {
        alignas(64) uint8_t copy[bytes] = {};
        std::memcpy(copy, p, values_left * F::bytes);
        return f(copy);
      }
    }
    f(p);
  }
};
