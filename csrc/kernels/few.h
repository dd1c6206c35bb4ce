// A few columns on matrix tiles (AMX, int8): 16 rows of one span at a time, turned on their side, are a right tile for
// each group; the 8-bit activations of up to 16 columns are the left one. Work on tiles grows with the rows of the left
// tile, so it grows smoothly with the columns. Where there are eight columns or fewer, two groups go into one product:
// a left tile has the first group's activations in rows of their own and zeros beside them.
//
// Three things go on at once: the next span is decoded, the tiles of this one are multiplied, and the sums of the one
// before are scaled.

constexpr size_t kFewRows = 16;
constexpr size_t kFewColumns = 16, kFewKept = 8;  // at most; whose results stay in registers

// Activations of a span: for each product a left tile; then for each group the scale, and the scale times the sum, of
// every column. Columns that are not there have the scale zero.
template <int sub>
struct FewColumns {
  static constexpr size_t groups = kSpan / sub;
  size_t columns;

  bool two() const { return columns <= kFewKept; }
  size_t rows() const { return two() ? 2 * columns : columns; }  // of a left tile
  size_t depth() const { return two() ? 2 * sub : sub; }
  size_t tile_bytes() const { return two() ? 1024 : rows() * depth(); }
  size_t floats_at() const { return (groups / (two() ? 2 : 1) * tile_bytes() + 63) / 64 * 64; }
  size_t pitch() const { return columns < kFewKept ? kFewKept : columns; }
  // An odd number of half pages, so that what is loaded for one span and stored for the next lies apart: see
  // FewScratch.
  size_t bytes() const { return ((floats_at() + 2 * groups * pitch() * sizeof(float) + 2047) / 2048 | 1) * 2048; }
  template <class Byte>
  auto* scales(Byte* span) const {
    using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return reinterpret_cast<Float*>(span + floats_at());
  }
  template <class Byte>
  auto* sums(Byte* span) const {
    return scales(span) + groups * pitch();
  }
};

template <int sub>
inline void pack_few(const Activation* x, size_t x_stride, size_t columns, uint8_t* out) {
  const FewColumns<sub> in{columns};
  std::memset(out, 0, in.bytes());
  for (size_t c = 0; c < columns; ++c) {
    const Activation& a = x[c * x_stride];
    for (size_t g = 0; g < in.groups; ++g) {
      in.scales(out)[g * in.pitch() + c] = a.d16[g * sub / 16];
      in.sums(out)[g * in.pitch() + c] = sub == 16 ? a.s16[g] : a.s32[g];
      const size_t half = in.two() ? g % 2 : 0, tile = in.two() ? g / 2 : g;
      std::memcpy(out + tile * in.tile_bytes() + (half * columns + c) * in.depth() + half * sub, a.q + g * sub, sub);
    }
  }
}

// What a thread needs beside its stack. What is stored and what is loaded at about the same time should not lie a
// multiple of 4096 bytes apart: the core would take the one for the other, and wait. Hence the gaps.
template <class F>
struct alignas(4096) FewScratch {
  using T = Turned<F, true>;
  struct {
    typename T::Codes codes;
    uint8_t gap[2048];
  } codes[2];
  uint8_t gap[2048];
  struct {
    int32_t of[T::groups][kFewRows * 16];
    uint8_t gap[2048];
  } sums[2];
  typename T::Factors factors[3];
  float rest[kFewColumns - kFewKept][16];
  SpanCopy<F> copy;
};

template <class F, bool two>
struct Few {
  using T = Turned<F, true>;
  using S = Shape<F>;
  static constexpr int sub = S::sub, in_one = two ? 2 : 1, products = T::groups / in_one;
  static constexpr int lines = (kFewRows * S::span_bytes() + 63) / 64;  // of 16 rows of a span

  FewScratch<F>& own;
  const FewColumns<sub> in;

  template <int p>
  FEWBIT_INLINE void product(size_t i, const uint8_t* x) const {
    const uint8_t* right = own.codes[i % 2].codes.quads[p * in_one * (sub / 4)][0];
    const uint8_t* left = x + p * in.tile_bytes();
    const size_t depth = in.depth();
#define FEWBIT_PRODUCT(C, A, B) \
  _tile_zero(C);                \
  _tile_loadd(B, right, 64);    \
  _tile_loadd(A, left, depth);  \
  if constexpr (T::is_signed)   \
    _tile_dpbssd(C, A, B);      \
  else                          \
    _tile_dpbsud(C, A, B);
    if constexpr (p % 4 == 0) {
      FEWBIT_PRODUCT(0, 4, 6)
    } else if constexpr (p % 4 == 1) {
      FEWBIT_PRODUCT(1, 5, 7)
    } else if constexpr (p % 4 == 2) {
      FEWBIT_PRODUCT(2, 4, 6)
    } else {
      FEWBIT_PRODUCT(3, 5, 7)
    }
#undef FEWBIT_PRODUCT
  }
  template <int p>
  FEWBIT_INLINE void store(size_t i) const {
    int32_t* to = own.sums[i % 2].of[p];
    if constexpr (p % 4 == 0)
      _tile_stored(0, to, 64);
    else if constexpr (p % 4 == 1)
      _tile_stored(1, to, 64);
    else if constexpr (p % 4 == 2)
      _tile_stored(2, to, 64);
    else
      _tile_stored(3, to, 64);
  }
  static FEWBIT_INLINE __m512 scaled(const int32_t* sums, __m512 scale, __m512 shift, float d, float s, __m512 acc) {
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums)), _mm512_mul_ps(scale, _mm512_set1_ps(d)), acc);
    return T::shifts ? _mm512_fmadd_ps(shift, _mm512_set1_ps(s), acc) : acc;
  }
  // Adds the scaled sums of product p.
  template <int p>
  FEWBIT_INLINE void scale(size_t i, const uint8_t* x, __m512* acc) const {
    const int32_t* sums = own.sums[i % 2].of[p];
    for (int h = 0; h < in_one; ++h, sums += 16 * in.columns) {
      constexpr int first = p * in_one;
      const float *d = in.scales(x) + (first + h) * in.pitch(), *s = in.sums(x) + (first + h) * in.pitch();
      const __m512 scale = _mm512_load_ps(own.factors[i % 3].scale[first + h]);
      const __m512 shift = T::shifts ? _mm512_load_ps(own.factors[i % 3].shift[first + h]) : scale;
#pragma GCC unroll 8
      for (size_t c = 0; c < kFewKept; ++c) acc[c] = scaled(sums + 16 * c, scale, shift, d[c], s[c], acc[c]);
      if constexpr (!two) {
        for (size_t c = kFewKept; c < in.columns; ++c) {
          float* to = own.rest[c - kFewKept];
          _mm512_store_ps(to, scaled(sums + 16 * c, scale, shift, d[c], s[c], _mm512_load_ps(to)));
        }
      }
    }
  }
  // What is done in one step: multiply span i, scale the one before, decode the next. Spans of 16 rows are counted one
  // after another.
  struct Step {
    size_t i;
    const uint8_t *x_before, *x;  // null: that is left out
    const Rows* next;
    const uint8_t* ahead;
  };
  FEWBIT_INLINE void step(const Step& at, __m512* acc) const {
    typename T::Windows windows;
    typename T::Plain plain;
    if (at.next) T::factors(*at.next, own.factors[(at.i + 1) % 3]);
    const auto part = [&]<int p>(std::integral_constant<int, p>) FEWBIT_LAMBDA_INLINE {
      if (at.x) product<p>(at.i, at.x);
      if (at.next) {
        for (int l = p * lines / products; l < (p + 1) * lines / products; ++l) {
          __builtin_prefetch(at.ahead + 64 * l, 0, 2);
        }
        T::template some_codes<p, products>(*at.next, windows, plain, own.codes[(at.i + 1) % 2].codes);
      }
      if (at.x_before) scale<p>(at.i - 1, at.x_before, acc);
      if constexpr (p > 0) {
        if (at.x) store<p - 1>(at.i);
      }
    };
    [&]<int... p>(std::integer_sequence<int, p...>) FEWBIT_LAMBDA_INLINE {
      (part(std::integral_constant<int, p>{}), ...);
    }(std::make_integer_sequence<int, products>{});
    if (at.x) store<products - 1>(at.i);
  }
  FEWBIT_INLINE void clear(__m512* acc) const {
    for (size_t c = 0; c < kFewKept; ++c) acc[c] = _mm512_setzero_ps();
    for (auto& r : own.rest) _mm512_store_ps(r, _mm512_setzero_ps());
  }
  FEWBIT_INLINE void write(const __m512* acc, size_t count, float* y, size_t stride) const {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
#pragma GCC unroll 8
    for (size_t c = 0; c < kFewKept; ++c) {
      if (c < in.columns) _mm512_mask_storeu_ps(y + c * stride, mask, acc[c]);
    }
    for (size_t c = kFewKept; c < in.columns; ++c) {
      _mm512_mask_storeu_ps(y + c * stride, mask, _mm512_load_ps(own.rest[c - kFewKept]));
    }
  }
  void rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const uint8_t* x, float* y,
            size_t y_stride) const {
    const size_t spans = (k + kSpan - 1) / kSpan, total = (rows + kFewRows - 1) / kFewRows * spans;
    const auto count = [&](size_t first) { return rows - first < kFewRows ? rows - first : kFewRows; };
    __m512 acc[kFewKept];
    clear(acc);
    for (size_t n = 0; n < total + 2; ++n) {  // n is decoded, n - 1 multiplied, n - 2 scaled
      Step now{n - 1, nullptr, nullptr, nullptr, nullptr};
      if (n > 1) now.x_before = x + (n - 2) % spans * in.bytes();
      if (n > 0 && n <= total) now.x = x + (n - 1) % spans * in.bytes();
      Rows next;
      if (n < total) {
        const size_t first = n / spans * kFewRows;
        const uint8_t* block = w + first * at.row_bytes;
        next = rows_of<F>(block, count(first), n % spans, k, at, own.copy);
        now.next = &next;
        now.ahead = block + kFewRows * (at.row_bytes + n % spans * S::span_bytes());
      }
      step(now, acc);
      if (n > 1 && (n - 1) % spans == 0) {
        const size_t first = (n - 2) / spans * kFewRows;
        write(acc, count(first), y + first, y_stride);
        clear(acc);
      }
    }
  }
};

template <class F>
void few_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const void* packed, size_t columns, float* y,
              size_t y_stride, void* scratch) {
  static_assert(sizeof(FewScratch<F>) <= kPanelRows * kPanelSpans * kSpan * sizeof(uint16_t));  // tile_scratch_bytes
  const FewColumns<Shape<F>::sub> in{columns};
  const TileUse in_use(in.rows(), in.depth());
  auto& own = *static_cast<FewScratch<F>*>(scratch);
  const auto* x = static_cast<const uint8_t*>(packed);
  if (in.two())
    Few<F, true>{own, in}.rows(w, rows, k, at, x, y, y_stride);
  else if constexpr (Shape<F>::sub == 32)  // with more scales than that, `strips` is faster
    Few<F, false>{own, in}.rows(w, rows, k, at, x, y, y_stride);
}

inline void pack_few_columns(int sub, const Activation* x, size_t stride, size_t columns, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  sub == 16 ? pack_few<16>(x, stride, columns, to) : pack_few<32>(x, stride, columns, to);
}
inline size_t few_bytes(int sub, size_t columns) {  // of one span
  return sub == 16 ? FewColumns<16>{columns}.bytes() : FewColumns<32>{columns}.bytes();
}
