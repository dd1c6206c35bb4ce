// No vector instruction at all: arrays of 64 bytes and 16 floats. This is the contract: every instruction set gives an
// `Isa` with these names, and each does what it does here. What only some have is listed below. An ISA header knows
// vectors, never a format; a kernel knows names, never an instruction.
//
// What the chip is like, measured (docs/log.md):
//   W, L            bytes and floats of a vector; a dot lane sums 4 bytes
//   registers       vectors that it has, 16 or 32; 0: none, and what is compiled for speed is left out
//   max_unsigned    the largest unsigned code that a dot product takes without overflow
//   micro_columns, micro_sets      columns, and vectors of rows, that panel_dot has registers for
//   streams         rows far apart that gemv.h reads alternately: 4, 2 or 1
//   least_micro     columns from which micro_kernel.h is faster than gemv.h
//   prefetch_far, prefetch_near    bytes after the weights being read, to the second- and the first-level cache; 0:
//                                  nothing is prefetched
//
// What an instruction set may give beside, each with a bool that tells:
//   can_stride      shared_halves: codes whose two halves of 16 share eight bytes; transposed: codes of 2 or 3 bits in
//                   the order of `transposed_group` (kernels/shapes.h). Chunks are worth to be taken in strided order
//                   (`runs` there)
//   can_gather      points, points_at and what else kernels/grids.h names: points of grids by gathers or tables
//   can_transpose   transpose_window: 16 bytes of each of L rows as four vectors with a dword of every row;
//   rows_to_lines,
//                   lines_to_rows: 16 bytes of 16 rows to four lines and back; thrice, thrice_less
//   can_reduce      several vectors at once: largest and sums of a k-block, reorder, sums_of_16
//   can_transform   tops_of_4, hadamard: what attention does with lanes
//   has_tables      nibbles: 32 codes of four bits looked up among 16 floats; words_at, values_of_words
//   can_interleave  a vector has a lane for each of L rows: take, take_bits (codes), field, less_to_floats, halves_of,
//                   byte_real, as_floats (scales), joined, less, two_of, weight, weighted, start: see
//                   avx2/interleaved.h
//   dots_by_lane    a vector of codes times the four activations of a lane: all of neon/by_lane.h
//   integer_kv      K and V as the integers that they are packed as: the rest of neon/kv.h; fma_by where a
//                   block of 32 floats is more than four vectors (kernels/kv_narrow.h)
struct Isa {
  static constexpr int W = 64, L = 16, max_unsigned = 255, micro_columns = 8, micro_sets = 1;
  static constexpr int registers = 0, streams = 1, least_micro = 12, prefetch_far = 8192, prefetch_near = 1024;
  static constexpr bool can_stride = false, can_gather = false, can_transpose = false, can_reduce = false,
                        has_tables = false, can_interleave = false, can_transform = false, integer_kv = false,
                        dots_by_lane = false;
  struct bytes {
    uint8_t v[W];
  };
  struct f32 {
    float v[L];
  };

  // Codes.

  static FEWBIT_INLINE bytes load(const uint8_t* p) {
    bytes b;
    std::memcpy(b.v, p, W);
    return b;
  }
  // One plane of a chunk of codes, 16 from each of some addresses; `unshifted`: not shifted down.
  template <Lanes g, bool unshifted>
  static FEWBIT_INLINE bytes lanes(const uint8_t* p) {
    bytes b;
    constexpr int mask = (1 << g.bits) - 1;
    for (int i = 0; i < W; ++i) {
      b.v[i] = static_cast<uint8_t>((p[g.at[i / 16] + i % 16] >> g.shift[i / 16] & mask) << g.dst);
    }
    return b;
  }
  // The same where each code has a byte and a shift of its own.
  template <Scatter g>
  static FEWBIT_INLINE bytes scattered(const uint8_t* p) {
    bytes b;
    constexpr int mask = (1 << g.bits) - 1;
    for (int i = 0; i < W; ++i) {
      b.v[i] = static_cast<uint8_t>((p[g.window[i / 16] + g.byte[i]] >> g.shift[i] & mask) << g.dst);
    }
    return b;
  }
  // Two planes of the same codes, joined.
  static FEWBIT_INLINE bytes either(bytes a, bytes b) {
    for (int i = 0; i < W; ++i) a.v[i] |= b.v[i];
    return a;
  }
  // What codes stand for, plus a bias.
  template <Codebook book, int bias>
  static FEWBIT_INLINE bytes lookup(bytes b) {
    for (auto& x : b.v) x = static_cast<uint8_t>(book.values[x] + bias);
    return b;
  }
  // W bytes from points of a grid.
  template <int width>
  static FEWBIT_INLINE bytes joined_points(const int8_t* const* at) {
    bytes b;
    for (int i = 0; i < W / width; ++i) std::memcpy(b.v + i * width, at[i], width);
    return b;
  }
  // Codes of a grid: minus where a sign bit is set, plus a bias; or 8 times, plus 1, or minus 1 where it is set.
  template <bool shift, int bias>
  static FEWBIT_INLINE bytes signed_codes(bytes b, uint64_t signs) {
    for (int i = 0; i < W; ++i) {
      const int v = static_cast<int8_t>(b.v[i]), is_set = static_cast<int>(signs >> i & 1);
      b.v[i] = static_cast<uint8_t>((shift ? 8 * v + 1 - 2 * is_set : is_set ? -v : v) + bias);
    }
    return b;
  }
  // Base-3 digits: digit n of a byte is the whole part of 3 * (byte * 3^n mod 256) / 256.
  template <Trits t, int j>
  static FEWBIT_INLINE bytes digits(const uint8_t* p) {
    bytes b;
    for (int i = 0; i < W; ++i) {
      const int code = j * W + i, first = code < 160 ? 0 : code < 240 ? 160 : 240;
      const TritPart& part = t.parts[code < 160 ? 0 : code < 240 ? 1 : 2];
      const auto v = static_cast<uint8_t>(p[part.first + (code - first) % part.bytes] * power_of_3(code));
      b.v[i] = static_cast<uint8_t>(v * 3 >> 8);
    }
    return b;
  }
  // Unsigned bytes less 128, or back.
  static FEWBIT_INLINE bytes flip(bytes b) {
    for (auto& x : b.v) x ^= 0x80;
    return b;
  }
  // Dot products: codes, signed or not, times signed activations, four and four.

  template <bool is_signed>
  static FEWBIT_INLINE f32 dot(bytes q, const int8_t* x) {
    f32 out;
    for (int l = 0; l < L; ++l) {
      int sum = 0;
      for (int i = 4 * l; i < 4 * l + 4; ++i) sum += (is_signed ? static_cast<int8_t>(q.v[i]) : q.v[i]) * x[i];
      out.v[l] = static_cast<float>(sum);
    }
    return out;
  }
  struct ints {
    int32_t v[L];
  };
  static FEWBIT_INLINE ints no_ints() { return {}; }
  template <bool is_signed = false>
  static FEWBIT_INLINE ints dot_add(ints acc, bytes q, const int8_t* x) {
    for (int i = 0; i < W; ++i) acc.v[i / 4] += (is_signed ? static_cast<int8_t>(q.v[i]) : q.v[i]) * x[i];
    return acc;
  }
  template <bool is_signed>
  static FEWBIT_INLINE ints lane_dot(ints acc, bytes w, const int8_t* four) {  // the same four for every lane
    for (int i = 0; i < W; ++i) acc.v[i / 4] += (is_signed ? static_cast<int8_t>(w.v[i]) : w.v[i]) * four[i % 4];
    return acc;
  }
  // `count` vectors with four codes of every row, at most `most`, times 4 * count activations of each column; so for
  // each of `sets`.
  template <int sets, int Cols, int count, int most, bool is_signed>
  static FEWBIT_INLINE void panel_dot(const bytes* const* q, const int8_t* const* x, ints (*out)[Cols]) {
    for (int s = 0; s < sets; ++s) {
      for (int c = 0; c < Cols; ++c) {
        out[s][c] = no_ints();
        for (int i = 0; i < count; ++i) out[s][c] = lane_dot<is_signed>(out[s][c], q[s][i], x[c] + 4 * i);
      }
    }
  }
  // L rows of L dwords, `stride` bytes apart, transposed.
  static FEWBIT_INLINE void transpose(const uint8_t* in, size_t stride, uint8_t* out, size_t out_stride) {
    for (size_t r = 0; r < L; ++r) {
      for (size_t d = 0; d < L; ++d) std::memcpy(out + d * out_stride + 4 * r, in + r * stride + 4 * d, 4);
    }
  }
  static FEWBIT_INLINE void store(uint8_t* p, bytes b) { std::memcpy(p, b.v, W); }
  static FEWBIT_INLINE f32 to_floats(ints a) {
    f32 out;
    for (int l = 0; l < L; ++l) out.v[l] = static_cast<float>(a.v[l]);
    return out;
  }
  // Part `part` of a chunk as floats.
  template <int part, bool is_signed>
  static FEWBIT_INLINE f32 widen(bytes b) {
    f32 out;
    for (int i = 0; i < L; ++i) {
      const uint8_t x = b.v[L * part + i];
      out.v[i] = is_signed ? static_cast<int8_t>(x) : x;
    }
    return out;
  }
  // Scales and offsets of a k-block.

  // Small integers as floats, as stored, less their zero if they are taken once.
  template <Small t>
  static FEWBIT_INLINE f32 small(const uint8_t* p) {
    f32 out;
    for (int l = 0; l < L; ++l) {
      int v = 0;
      for (int k = 0; k < t.pieces; ++k) {
        if (!t.mask[k][l]) continue;
        const uint8_t* at = p + t.window + t.byte[k][l] * (t.wide ? 4 : 1);
        const uint32_t word = t.wide               ? fewbit::load<uint32_t>(at)
                              : t.bytes[k][l] == 2 ? fewbit::load<uint16_t>(at)
                                                   : *at;
        v |= static_cast<int>(word >> t.shift[k][l] & static_cast<uint32_t>(t.mask[k][l])) << t.dst[k][l];
      }
      out.v[l] = static_cast<float>(t.is_signed ? static_cast<int8_t>(v) : v - (t.times == 1 ? t.zero[l] : 0));
    }
    return out;
  }
  // An f16 in every lane.
  static FEWBIT_INLINE f32 half(const uint8_t* p) { return splat(f16_to_f32(fewbit::load<uint16_t>(p))); }
  // Two neighbouring f16 alternately; then each in a vector of its own.
  static FEWBIT_INLINE f32 half_pair(const uint8_t* p) {
    return alternate(f16_to_f32(fewbit::load<uint16_t>(p)), f16_to_f32(fewbit::load<uint16_t>(p + 2)));
  }
  static FEWBIT_INLINE void two_halves(const uint8_t* p, f32& a, f32& b) {
    a = half(p);
    b = half(p + 2);
  }
  static FEWBIT_INLINE float half_from(uint16_t h) { return f16_to_f32(h); }
  // One number of any kind.
  template <Real r>
  static FEWBIT_INLINE float real(const uint8_t* p) {
    return read_real(r, p);
  }
  // One float for each block of `block` values and `size` bytes, in the even lanes, 32 values each; with `offset` the
  // one right after it, in the odd lanes.
  template <Real r, int block, int size, bool offset>
  static FEWBIT_INLINE void strided(const uint8_t* p, f32* out) {
    for (int g = 0; g < 8; ++g) {
      const uint8_t* at = p + g * 32 / block * size;
      out->v[2 * g] = read_real(r, at);
      out->v[2 * g + 1] = offset ? read_real(r, at + real_bytes(r)) : 0;
    }
  }
  // Four bytes in each of four blocks of `size` bytes.
  template <Real r, int size>
  static FEWBIT_INLINE void quads(const uint8_t* p, f32* out) {
    for (int g = 0; g < L; ++g) out->v[g] = read_real(r, p + g / 4 * size + g % 4);
  }
  // Eight neighbours; `deal` gives every group of 32 its scale (and offset) from them, 1 << shift groups to each.
  struct f32x8 {
    float v[8];
  };
  template <Real r>
  static FEWBIT_INLINE f32x8 eight(const uint8_t* p) {
    f32x8 out;
    for (int i = 0; i < 8; ++i) out.v[i] = read_real(r, p + i * real_bytes(r));
    return out;
  }
  static FEWBIT_INLINE f32x8 splat8(float x) { return {{x, x, x, x, x, x, x, x}}; }
  static FEWBIT_INLINE f32x8 mul8(f32x8 a, f32x8 b) {
    for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i];
    return a;
  }
  template <bool offset>
  static FEWBIT_INLINE void deal(f32x8 scales, f32x8 offsets, int shift, f32* out, std::bool_constant<offset>) {
    for (int g = 0; g < 8; ++g) {
      out->v[2 * g] = scales.v[g >> shift];
      out->v[2 * g + 1] = offset ? offsets.v[g >> shift] : 0;
    }
  }

  // Floats.

  static FEWBIT_INLINE f32 splat(float x) { return alternate(x, x); }
  static FEWBIT_INLINE f32 only(f32 x, const uint32_t* ones) {  // the rest is 0
    for (int l = 0; l < L; ++l) x.v[l] = ones[l] ? x.v[l] : 0;
    return x;
  }
  // a in even lanes, b in odd ones.
  static FEWBIT_INLINE f32 alternate(float a, float b) {
    f32 out;
    for (int i = 0; i < L; ++i) out.v[i] = i % 2 ? b : a;
    return out;
  }
  static FEWBIT_INLINE f32 zero() { return splat(0); }
  static FEWBIT_INLINE f32 fma(f32 a, f32 b, f32 c) { return add(mul(a, b), c); }
  // The bits of the largest magnitude among 32 floats.
  static FEWBIT_INLINE uint32_t largest_of_32(const float* x) {
    uint32_t top = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t a = f32_bits(x[i]) & 0x7fffffffu;
      top = a > top ? a : top;
    }
    return top;
  }
  // 16 floats times a factor, rounded to the nearest integer, half to even; returns their sum. Factor 0: all are 0.
  static FEWBIT_INLINE int quantize_16(const float* x, float by, int8_t* out) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) {
      const float r = by == 0 ? 12582912.0f : x[i] * by + 12582912.0f;
      out[i] = static_cast<int8_t>(static_cast<int>(f32_bits(r)) - 0x4b400000);
      sum += out[i];
    }
    return sum;
  }
  // c - a * b.
  static FEWBIT_INLINE f32 fnma(f32 a, f32 b, f32 c) { return add(mul(mul(a, splat(-1)), b), c); }
  // a * b + c in odd lanes, c in even ones; minus: -a * b + c.
  template <bool minus>
  static FEWBIT_INLINE f32 fma_odd(f32 a, f32 b, f32 c) {
    for (int i = 1; i < L; i += 2) c.v[i] += minus ? -a.v[i] * b.v[i] : a.v[i] * b.v[i];
    return c;
  }
  static FEWBIT_INLINE f32 mul(f32 a, f32 b) {
    for (int i = 0; i < L; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static FEWBIT_INLINE f32 add(f32 a, f32 b) {
    for (int i = 0; i < L; ++i) a.v[i] += b.v[i];
    return a;
  }
  // Lanes in another order.
  template <std::array<int, 16> lane>
  static FEWBIT_INLINE f32 spread(f32 v) {
    f32 out;
    for (int i = 0; i < L; ++i) out.v[i] = v.v[lane[i]];
    return out;
  }
  // Of all lanes, halves first: the same order everywhere with as many lanes.
  static FEWBIT_INLINE float sum(f32 v) {
    for (int half = L / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) v.v[i] += v.v[i + half];
    }
    return v.v[0];
  }
  // Aligned, then not.
  static FEWBIT_INLINE f32 loadf(const float* p) { return loadu(p); }
  static FEWBIT_INLINE f32 loadu(const float* p) {
    f32 f;
    std::memcpy(f.v, p, sizeof f.v);
    return f;
  }
  static FEWBIT_INLINE void storef(float* p, f32 v) { std::memcpy(p, v.v, sizeof v.v); }

  template <Real r>
  static FEWBIT_INLINE f32 splat_real(const uint8_t* p) {
    return splat(real<r>(p));
  }
  template <Real r>
  static FEWBIT_INLINE f32 reals_at(const uint8_t* p) {
    f32 out;
    for (int l = 0; l < L; ++l) out.v[l] = read_real(r, p + l * real_bytes(r));
    return out;
  }
  // Rows of the KV cache: 16 codes at a time.

  struct bytes16 {
    uint8_t v[16];
  };
  template <Run16 g>
  static FEWBIT_INLINE bytes16 run(const uint8_t* p) {
    bytes16 out;
    for (int i = 0; i < 16; ++i) {
      const int byte = g.in_bits ? p[g.at + i / 8] >> i % 8 : p[g.at + i] >> g.shift;
      out.v[i] = static_cast<uint8_t>((byte & ((1 << g.bits) - 1)) << g.dst);
    }
    return out;
  }
  static FEWBIT_INLINE bytes16 either16(bytes16 a, bytes16 b) {
    for (int i = 0; i < 16; ++i) a.v[i] |= b.v[i];
    return a;
  }
  template <Codebook book>
  static FEWBIT_INLINE bytes16 lookup16(bytes16 v) {
    for (auto& b : v.v) b = static_cast<uint8_t>(book.values[b]);
    return v;
  }
  template <bool is_signed>
  static FEWBIT_INLINE void widen16(bytes16 v, f32* out) {
    for (int i = 0; i < 16; ++i) out->v[i] = is_signed ? static_cast<float>(static_cast<int8_t>(v.v[i])) : v.v[i];
  }
  // Softmax.

  static FEWBIT_INLINE f32 larger(f32 a, f32 b) {
    for (int l = 0; l < L; ++l) a.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l];
    return a;
  }
  static FEWBIT_INLINE float top(f32 v) {
    for (int l = 1; l < L; ++l) v.v[0] = v.v[l] > v.v[0] ? v.v[l] : v.v[0];
    return v.v[0];
  }
  static FEWBIT_INLINE bool any_positive(f32 v) {  // or no number
    for (const float x : v.v) {
      if (!(x <= 0)) return true;
    }
    return false;
  }
  static FEWBIT_INLINE f32 exp(f32 x) {
    for (auto& v : x.v) v = __builtin_expf(v);
    return x;
  }
  // The lanes of each of four vectors added up.
  static FEWBIT_INLINE void sums_of_4(const f32* v, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(v[i]);
  }
};
