// Attention of a few queries over K and V as the integers that they are packed as, for instruction sets with dot
// products of bytes. Queries, and weights times the scales of values, are rounded to 16 bits, in two bytes each: far
// less is lost than when K and V were packed. Sums begin with the bits of 1.5 * 2^23, less the zero point of the codes
// times what they are multiplied by: so neither a conversion nor a subtraction is left.

constexpr int32_t kStartBits = 0x4b400000;
constexpr float kMostInteger = 127 * 256;  // the first byte of the two stays in its range

struct TwoBytes {  // 32 integers, high * 256 + low, and where sums with them begin
  alignas(16) int8_t high[32], low[32];
  alignas(16) int32_t high_start[4], low_start[4];
};

struct IntegerQueries {
  float units[kSkinnyQueries];  // what one unit of each row stands for; not a number where the row is not finite
  TwoBytes* blocks() { return reinterpret_cast<TwoBytes*>(this + 1); }  // [block][row]
  const TwoBytes* blocks() const { return reinterpret_cast<const TwoBytes*>(this + 1); }
};

template <class F>
struct KvIntegers {
  using B = KvBlock<F>;
  using I = typename Own<F>::type;
  using f32 = typename Isa::f32;
  using bytes = typename Isa::bytes;
  using ints = typename Isa::ints;

  static constexpr bool can() {
    if constexpr (Isa::integer_kv && B::can() && !B::plain) {
      const bool is_signed = F::codebook.used > 0 || F::codes.is_signed || F::codes.bits() < 8;
      return is_signed && !F::offset.present && F::scale.real == Real::f16 && F::codes.times == 1;
    } else {
      return false;
    }
  }
  static constexpr int zero = F::codebook.used > 0 ? 0 : F::codes.zero;
  // Codes lie in one plane: tokens are zipped before the codes are taken out of their bytes.
  static constexpr bool in_one_plane = F::codes.pieces(0) == 1 && !B::run(0, 0).in_bits;
  static constexpr int place(int half) { return in_one_plane ? B::run(0, half).at : 0; }
  static constexpr int vectors = 32 / Isa::L;

  static FEWBIT_INLINE const uint8_t* raw(const int8_t* p) { return reinterpret_cast<const uint8_t*>(p); }
  static FEWBIT_INLINE bytes integers(bytes codes) {
    if constexpr (F::codebook.used > 0) codes = I::template lookup16<F::codebook>(codes);
    return codes;
  }
  template <int half>
  static FEWBIT_INLINE bytes codes(const uint8_t* block) {
    bytes v = I::template run<B::run(0, half)>(block);
    if constexpr (F::codes.pieces(0) > 1) v = I::either16(v, I::template run<B::run(1, half)>(block));
    return integers(v);
  }

  // 32 numbers to integers, and what one unit of them is. `lanes` of a sum begin with what all of them stand for.
  static FEWBIT_INLINE void pack(const f32* x, float by, int lanes, TwoBytes& out) {
    bytes high[2], low[2];
    for (int i = 0; i < 2; ++i) {
      I::two_bytes(x + i * vectors / 2, by, high[i], low[i]);
      Isa::store(reinterpret_cast<uint8_t*>(out.high + 16 * i), high[i]);
      Isa::store(reinterpret_cast<uint8_t*>(out.low + 16 * i), low[i]);
    }
    const int32_t a = kStartBits - (zero ? zero * I::sum_of_bytes(high[0], high[1]) : 0);
    const int32_t b = kStartBits - (zero ? zero * I::sum_of_bytes(low[0], low[1]) : 0);
    for (int i = 0; i < 4; ++i) {
      out.high_start[i] = i < lanes ? a : 0;
      out.low_start[i] = i < lanes ? b : 0;
    }
  }
  static FEWBIT_INLINE float factor(float top) { return top > 0 ? kMostInteger / top : 0; }
  static FEWBIT_INLINE float unit(float top) { return top * (1 / kMostInteger) + (top - top); }

  static void pack_query(const float* q, size_t pad, size_t rows, float& unit_of, TwoBytes* out) {
    f32 top = Isa::zero();
    for (size_t d = 0; d < pad; d += Isa::L) top = I::larger_size(top, Isa::loadf(q + d));
    const float most = I::top_size(top), by = factor(most);
    unit_of = unit(most);
    for (size_t b = 0; b < pad / 32; ++b) {
      f32 x[vectors];
      for (int v = 0; v < vectors; ++v) x[v] = Isa::loadf(q + 32 * b + v * Isa::L);
      pack(x, by, 1, out[b * rows]);
    }
  }

  // Scores of four tokens with all rows: acc[row].
  template <class Rows>
  static FEWBIT_INLINE void score_4(const TwoBytes* q, Rows rows, const uint8_t* p, size_t stride, f32* acc) {
    bytes x[4][2];
    for (int t = 0; t < 4; ++t) {
      x[t][0] = codes<0>(p + t * stride);
      x[t][1] = codes<1>(p + t * stride);
    }
    const f32 scale = I::four_halves(p + F::scale.at, stride);
    for (size_t r = 0; r < rows; ++r) {
      const auto sums = [&](const int8_t* y, const int32_t* start) FEWBIT_LAMBDA_INLINE {
        const bytes low = Isa::load(raw(y)), high = Isa::load(raw(y + 16));
        ints n[4];
        for (int t = 0; t < 4; ++t) n[t] = I::dot_bytes(I::dot_bytes(I::start_at(start), x[t][0], low), x[t][1], high);
        return I::from_start(I::sums_of_ints(n));
      };
      const f32 high = sums(q[r].high, q[r].high_start), low = sums(q[r].low, q[r].low_start);
      acc[r] = Isa::fma(Isa::fma(high, Isa::splat(256), low), scale, acc[r]);
    }
  }
  // Scores of up to four tokens. Where `stride` is 0, four times that of the same.
  template <class Rows, class Blocks>
  static FEWBIT_INLINE void score_tokens(const IntegerQueries& q, Rows rows, Blocks blocks, const uint8_t* p,
                                         size_t stride, float* s) {
    f32 acc[kSkinnyQueries];
    for (size_t r = 0; r < rows; ++r) acc[r] = Isa::zero();
    for (size_t b = 0; b < blocks; ++b) score_4(q.blocks() + b * rows, rows, p + b * F::bytes, stride, acc);
    for (size_t r = 0; r < rows; ++r) Isa::storef(s + r * kKvTokens, Isa::mul(acc[r], Isa::splat(q.units[r])));
  }
  template <class Rows, class Blocks>
  static void scores(const IntegerQueries& q, Rows rows, Blocks blocks, const KvBlockRows& k, float* s) {
    const size_t row_bytes = blocks * F::bytes;
    size_t t = 0;
    for (; t + 4 <= k.tokens; t += 4) {
      for (size_t c = 0; c < 4 * row_bytes; c += 64) __builtin_prefetch(k.next + t * row_bytes + c, 0, 3);
      score_tokens(q, rows, blocks, k.data + t * row_bytes, row_bytes, s + t);
    }
    for (; t < k.tokens; ++t) {
      float last[kSkinnyQueries * kKvTokens];
      score_tokens(q, rows, blocks, k.data + t * row_bytes, 0, last);
      for (size_t r = 0; r < rows; ++r) s[r * kKvTokens + t] = last[r * kKvTokens];
    }
  }
};

// 16 values of four tokens, the four side by side, in each of four vectors: from the `place` of each.
template <class F, int half>
FEWBIT_INLINE void zip_rows(const uint8_t* const* rows, typename Isa::bytes* out) {
  using C = KvIntegers<F>;
  using I = typename Own<F>::type;
  typename Isa::bytes v[4];
  for (size_t i = 0; i < 4; ++i) {
    if constexpr (C::in_one_plane)
      v[i] = Isa::load(rows[i]);
    else
      v[i] = C::template codes<half>(rows[i]);
  }
  I::zip_tokens(v, out);
  if constexpr (C::in_one_plane) {
    for (int i = 0; i < 4; ++i) out[i] = C::integers(I::template run_of<C::B::run(0, half)>(out[i]));
  }
}
// Where sums take them from: rows of whole 16 tokens,
template <class F>
struct TokensOfRows {
  const uint8_t* data;
  size_t stride;

  template <int half>
  FEWBIT_INLINE void four(const uint8_t* p, typename Isa::bytes* out) const {
    const uint8_t* rows[4] = {p, p + stride, p + 2 * stride, p + 3 * stride};
    zip_rows<F, half>(rows, out);
  }
  template <int half>
  FEWBIT_INLINE const uint8_t* first() const {
    return data + KvIntegers<F>::place(half);
  }
  FEWBIT_INLINE size_t apart() const { return 4 * stride; }
};
// or memory where they are kept for several rows of weights. What lies past the last token is anything.
template <class F>
struct TokensKept {
  alignas(16) uint8_t data[2][kKvTokens * 16];

  TokensKept(const uint8_t* x, size_t tokens, size_t stride) {
    for (size_t t = 0; t < tokens; t += 4) {
      const uint8_t* rows[4];
      for (size_t i = 0; i < 4; ++i) rows[i] = x + (t + i < tokens ? t + i : t) * stride;
      put<0>(rows, 16 * t);
      put<1>(rows, 16 * t);
    }
  }
  template <int half>
  FEWBIT_INLINE void put(const uint8_t* const* rows, size_t at) {
    typename Isa::bytes v[4];
    const uint8_t* codes_at[4];
    for (int i = 0; i < 4; ++i) codes_at[i] = rows[i] + KvIntegers<F>::place(half);
    zip_rows<F, half>(codes_at, v);
    for (int i = 0; i < 4; ++i) Isa::store(data[half] + at + 16 * i, v[i]);
  }
  template <int half>
  FEWBIT_INLINE void four(const uint8_t* p, typename Isa::bytes* out) const {
    for (int i = 0; i < 4; ++i) out[i] = Isa::load(p + 16 * i);
  }
  template <int half>
  FEWBIT_INLINE const uint8_t* first() const {
    return data[half];
  }
  FEWBIT_INLINE size_t apart() const { return 64; }
};

template <class F>
struct KvSums {
  using C = KvIntegers<F>;
  using I = typename Own<F>::type;
  using f32 = typename Isa::f32;
  using bytes = typename Isa::bytes;
  using ints = typename Isa::ints;

  struct Weights {
    TwoBytes n;
    float unit;
  };

  // 16 values of some rows of sums.
  template <int Rows, int half, class From>
  static FEWBIT_INLINE void add_half(const From& from, size_t tokens, const Weights* w, float* out, size_t stride) {
    ints high[Rows][4], low[Rows][4];
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < 4; ++i) {
        high[r][i] = I::start_at(w[r].n.high_start);
        low[r][i] = I::start_at(w[r].n.low_start);
      }
    }
    const uint8_t* p = from.template first<half>();
    size_t t = 0;
    const auto four = [&]<int lane>(std::integral_constant<int, lane>) FEWBIT_LAMBDA_INLINE {
      bytes x[4];
      from.template four<half>(p, x);
      p += from.apart();
      for (int r = 0; r < Rows; ++r) {
        const bytes a = Isa::load(C::raw(w[r].n.high + t)), b = Isa::load(C::raw(w[r].n.low + t));
        for (int i = 0; i < 4; ++i) {
          high[r][i] = I::template dot_bytes_lane<lane>(high[r][i], x[i], a);
          low[r][i] = I::template dot_bytes_lane<lane>(low[r][i], x[i], b);
        }
      }
      I::read_after(low[Rows - 1][3], p);
    };
    do {
      four(std::integral_constant<int, 0>{});
      four(std::integral_constant<int, 1>{});
      four(std::integral_constant<int, 2>{});
      four(std::integral_constant<int, 3>{});
    } while ((t += 16) < tokens);
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < 4; ++i) {
        float* to = out + r * stride + 16 * half + 4 * i;
        const f32 n = Isa::fma(I::from_start(high[r][i]), Isa::splat(256), I::from_start(low[r][i]));
        Isa::storef(to, Isa::fma(n, Isa::splat(w[r].unit), Isa::loadf(to)));
      }
    }
  }
  // Not inlined: gcc would keep what several rows share in registers that it does not have.
  template <int Rows, class From>
  static FEWBIT_ONCE void add(const From& from, size_t tokens, const Weights* w, float* out, size_t stride) {
    add_half<Rows, 0>(from, tokens, w, out, stride);
    add_half<Rows, 1>(from, tokens, w, out, stride);
  }

  // The scales of a block of all tokens, 0 past the last.
  template <bool whole>
  static FEWBIT_INLINE void scales(const KvBlockRows& v, size_t block, f32* out) {
    const uint8_t* p = v.data + block * F::bytes + F::scale.at;
    if constexpr (whole) {
      const uint8_t* next = v.next + block * kKvTokens * F::bytes;
#pragma GCC unroll 8
      for (size_t t = 0; t < kKvTokens; t += 4) {
        for (size_t c = t * F::bytes / 64; c < (t + 4) * F::bytes / 64; ++c) __builtin_prefetch(next + 64 * c, 0, 3);
        out[t / 4] = I::four_halves(p + t * v.row_bytes, v.row_bytes);
      }
    } else {
      alignas(16) float d[kKvTokens] = {};
      for (size_t t = 0; t < v.tokens; ++t) d[t] = I::template real<Real::f16>(p + t * v.row_bytes);
      for (size_t t = 0; t < kKvTokens; t += 4) out[t / 4] = Isa::loadf(d + t);
    }
  }
  static FEWBIT_INLINE void weigh(const float* p, size_t tokens, const f32* d, Weights& out) {
    f32 w[C::vectors], top = Isa::zero();
    for (size_t i = 0; i < C::vectors; ++i) {
      w[i] = i * Isa::L < tokens ? Isa::mul(Isa::loadf(p + i * Isa::L), d[i]) : Isa::zero();
      top = I::larger_size(top, w[i]);
    }
    const float most = I::top_size(top);
    out.unit = C::unit(most);
    C::pack(w, C::factor(most), 4, out.n);
  }
  template <bool whole>
  static void values(const float* p, size_t rows, size_t blocks, const KvBlockRows& v, float* out, size_t stride) {
    const size_t tokens = whole ? kKvTokens : v.tokens;
    for (size_t b = 0; b < blocks; ++b, out += 32) {
      f32 d[C::vectors];
      Weights w[kSkinnyQueries];
      scales<whole>(v, b, d);
      for (size_t r = 0; r < rows; ++r) weigh(p + r * kKvTokens, tokens, d, w[r]);
      const uint8_t* x = v.data + b * F::bytes;
      if (whole && rows == 1) {
        add<1>(TokensOfRows<F>{x, v.row_bytes}, tokens, w, out, stride);
      } else if (whole && rows == 2) {
        add<2>(TokensOfRows<F>{x, v.row_bytes}, tokens, w, out, stride);
      } else {
        const TokensKept<F> kept(x, tokens, v.row_bytes);
        size_t r = 0;
        for (; r + 2 <= rows; r += 2) add<2>(kept, tokens, w + r, out + r * stride, stride);
        if (r < rows) add<1>(kept, tokens, w + r, out + r * stride, stride);
      }
    }
  }
};

template <class F>
void pack_integer_queries(const float* q, size_t rows, size_t pad, void* out) {
  auto& to = *static_cast<IntegerQueries*>(out);
  for (size_t r = 0; r < rows; ++r) {
    KvIntegers<F>::pack_query(q + r * pad, pad, rows, to.units[r], to.blocks() + r);
  }
}
inline size_t integer_query_bytes(size_t pad) {
  return sizeof(IntegerQueries) + pad / 32 * kSkinnyQueries * sizeof(TwoBytes);
}
// Calls f(blocks, rows); for what is usual, they are known while compiling.
template <class Fn>
FEWBIT_INLINE void by_shape(size_t blocks, size_t rows, Fn&& f) {
  constexpr auto one = std::integral_constant<size_t, 1>{};
  constexpr auto two = std::integral_constant<size_t, 2>{};
  constexpr auto four = std::integral_constant<size_t, 4>{};
  if (blocks == 4)
    rows == 1 ? f(four, one) : f(four, rows);
  else if (blocks == 2)
    rows == 1 ? f(two, one) : f(two, rows);
  else
    f(blocks, rows);
}
template <class F>
void integer_keys(const IntegerStep& step) {
  const auto& q = *static_cast<const IntegerQueries*>(step.queries);
  by_shape(step.keys.pad / 32, step.rows,
           [&](auto blocks, auto rows) { KvIntegers<F>::scores(q, rows, blocks, step.keys, step.scores); });
}
template <class F>
void integer_values(const IntegerStep& step) {
  const KvBlockRows& v = step.values;
  if (v.tokens == kKvTokens)
    KvSums<F>::template values<true>(step.scores, step.rows, v.pad / 32, v, step.sums, v.pad);
  else
    KvSums<F>::template values<false>(step.scores, step.rows, v.pad / 32, v, step.sums, v.pad);
}
inline void integer_step(const IntegerStep& step) {
  if (step.values.tokens) step.v->integer_values(step);
  if (step.keys.tokens) step.k->integer_keys(step);
}
inline void without_units(void (*work)(void*), void* what) { work(what); }

constexpr IntegerAttention integer_attention = {.most_dim = 4096,
                                                .least_page_tokens = 16,
                                                .is_exact = false,
                                                .query_bytes = integer_query_bytes,
                                                .step = integer_step,
                                                .with_units = without_units};
