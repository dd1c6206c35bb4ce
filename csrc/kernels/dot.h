// A packed row times 8-bit activations, for up to four columns at once. Zero points and offsets meet the sums of the
// activations in one multiply-add for each vector of factors; the codes meet them in integer dot products. The order of
// the float sums is the same for any number of columns.

// Asks for what will be read soon, each cache line once: far ahead into the second-level cache, nearer into the first.
// Past the end of the weights this does nothing. The more places are read in turns, the nearer; with `by_rows`
// at least a row ahead: scales that stand at the end of a row are needed with its first codes.
template <int places = 1, bool by_rows = false>
class Ahead {
 public:
  FEWBIT_INLINE explicit Ahead(const uint8_t* p, size_t row_bytes = 0)
      : next_(reinterpret_cast<uintptr_t>(p)), row_bytes_(row_bytes) {}
  template <int bytes>
  FEWBIT_INLINE void reach() {  // `bytes` bytes further than before
    if constexpr (!asks) return;
    end_ += bytes;
    for (int c = 0; c < bytes / 64; ++c) line();
    if (bytes % 64 != 0 && next_ < end_) line();
  }
  FEWBIT_INLINE void reach(size_t bytes) {
    if constexpr (!asks) return;
    for (end_ += bytes; next_ < end_;) line();
  }

 private:
  static constexpr bool asks = Isa::prefetch_far > 0 || Isa::prefetch_near > 0;
  FEWBIT_INLINE void line() {
    constexpr size_t far = Isa::prefetch_far / places;
    const size_t distance = by_rows && row_bytes_ > far ? row_bytes_ : far;
    __builtin_prefetch(reinterpret_cast<const void*>(next_ + distance), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(next_ + Isa::prefetch_near / (places > 1 ? 2 : 1)), 0, 3);
    next_ += 64;
  }
  uintptr_t next_, end_ = next_;
  size_t row_bytes_;
};

template <class F>
struct Dot {
  using P = Span<F>;
  using C = typename P::C;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, chains = 2;
  // One scale for the whole span, in every lane.
  static constexpr bool uniform = P::across && F::placement == Placement::block && F::group == kSpan && !C::offset;
  static constexpr bool by_16 = C::paired || P::groups == 16;

  static FEWBIT_INLINE const float* scales(const Activation& a) { return turns ? a.d_turned : by_16 ? a.d16 : a.d32; }
  static FEWBIT_INLINE const float* sums(const Activation& a) {
    if constexpr (turns) return a.s_turned;
    return uniform ? a.s16 : C::paired ? a.pair32 : P::groups == 16 ? a.s16 : a.s32;
  }
  // What each factor contributes for every unit of the sum: minus the zero point for scales, a sign for offsets.
  static constexpr float weight(int v, bool odd) {
    const bool is_offset = C::paired ? odd : v >= C::scale_vectors;
    return static_cast<float>(is_offset ? (C::offset ? F::offset_sign : 0) : -P::code.zero);
  }
  template <int v>
  static constexpr bool counts = weight(v, false) != 0 || (C::paired && weight(v, true) != 0);

  template <int v, int Cols>
  static FEWBIT_INLINE void add_sums(f32 factor, const Activation* const* a, f32 (*acc)[chains]) {
    if constexpr (turns && counts<v>) {  // weighted at the end of the row
      for (int c = 0; c < Cols; ++c) {
        acc[c][0] = Isa::fma(factor, Isa::loadf(sums(*a[c]) + v * L % P::groups), acc[c][0]);
      }
    } else if constexpr (counts<v>) {
      constexpr float even = weight(v, false), odd = C::paired && !uniform ? weight(v, true) : even;
      constexpr bool odd_only = even == 0 && odd * odd == 1, alone = even == odd && odd * odd == 1;
      const f32 w = C::paired ? Isa::alternate(even, odd) : Isa::splat(even);
      const f32 t = odd_only || alone ? factor : Isa::mul(factor, w);
      for (int c = 0; c < Cols; ++c) {
        const f32 sum = Isa::loadf(sums(*a[c]) + v * L % P::groups);
        if constexpr (odd_only)
          acc[c][0] = Isa::template fma_odd<(odd < 0)>(t, sum, acc[c][0]);
        else if constexpr (alone && odd < 0)
          acc[c][0] = Isa::fnma(t, sum, acc[c][0]);
        else
          acc[c][0] = Isa::fma(t, sum, acc[c][0]);
      }
    }
  }
  // The last values of a row may be fewer than a span. What lies past them is the next row, and counts nothing.
  static constexpr bool can_end_early = F::placement == Placement::block && F::block < kSpan && !P::unpacked;
  static constexpr size_t reads = Shape<F>::span_bytes() + 64;  // at most, from where a span begins
  alignas(64) static constexpr auto first_groups = [] {         // ones in the lanes of the first groups
    std::array<std::array<uint32_t, C::vectors * L>, P::groups + 1> out{};
    for (int n = 0; n <= P::groups; ++n) {
      for (int g = 0; g < n; ++g) {
        out[n][C::slot(g, false)] = ~uint32_t{0};
        if (C::offset) out[n][C::slot(g, true)] = ~uint32_t{0};
      }
    }
    return out;
  }();
  template <int Cols, bool whole = true>
  static FEWBIT_INLINE void span(const Spot& s, const Activation* const* a, f32 (*acc)[chains], size_t count = kSpan) {
    if constexpr (is_grid_span<F>()) {
      return GridSpan<F>::template span<Cols>(s.p, a, acc);
    } else {
      any_span<Cols, whole>(s, a, acc, count);
    }
  }
  template <int Cols, bool whole>
  static FEWBIT_INLINE void any_span(const Spot& s, const Activation* const* a, f32 (*acc)[chains], size_t count) {
    f32 factors[C::vectors], scaled[Cols][C::scale_vectors];
    Unpacked unpacked;
    const uint8_t* codes = s.p;
    if constexpr (P::unpacked) {
      P::unpack(s.p, unpacked);
      codes = unpacked.codes;
    }
    P::template factors<turns>(s, factors);
    if constexpr (!whole) {
      const uint32_t* ones = first_groups[(count + Shape<F>::sub - 1) / Shape<F>::sub].data();
      for (int v = 0; v < C::vectors; ++v) factors[v] = Isa::only(factors[v], ones + v * L);
    }
    [&]<int... v>(std::integer_sequence<int, v...>) FEWBIT_LAMBDA_INLINE {
      (add_sums<v, Cols>(factors[v], a, acc), ...);
    }(std::make_integer_sequence<int, C::vectors>{});
    for (int v = 0; v < C::scale_vectors; ++v) {
      if constexpr (P::code.times != 1) {
        factors[v] = Isa::mul(factors[v], Isa::splat(static_cast<float>(P::code.times)));
      }
      if constexpr (P::stays && !turns) factors[v] = Isa::mul(factors[v], P::unshift());
      for (int c = 0; c < Cols; ++c) scaled[c][v] = Isa::mul(factors[v], Isa::loadf(scales(*a[c]) + v * L));
    }
    if constexpr (joins) {
      [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
        ((g * Shape<F>::sub < static_cast<int>(count) ? group<g, Cols>(codes, a, scaled, acc) : void()), ...);
      }(std::make_integer_sequence<int, P::groups>{});
    } else if constexpr (!whole) {
      [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
        ((j * Isa::W < static_cast<int>(count) ? chunk<j, Cols, false>(codes, a, scaled, acc) : void()), ...);
      }(std::make_integer_sequence<int, P::chunks>{});
    } else if constexpr (turns) {
      turned_chunks<Cols>(codes, a, scaled, acc);
    } else if constexpr (P::across) {
      two_chunks<0, Cols>(codes, a, scaled, acc);
      two_chunks<2, Cols>(codes, a, scaled, acc);
    } else {
      [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
        (chunk<j, Cols>(codes, a, scaled, acc), ...);
      }(std::make_integer_sequence<int, P::chunks>{});
    }
  }
  // A group is several vectors: their dot products are added as integers and meet the scale together.
  static constexpr bool joins = Isa::W < Shape<F>::sub;
  template <int g, int Cols>
  static FEWBIT_INLINE void group(const uint8_t* codes, const Activation* const* a, f32 (*scaled)[C::scale_vectors],
                                  f32 (*acc)[chains]) {
    constexpr int count = Shape<F>::sub / Isa::W, first = g * count;
    typename Isa::bytes q[count];
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((q[i] = P::template codes<first + i>(codes)), ...);
    }(std::make_integer_sequence<int, count>{});
    for (int c = 0; c < Cols; ++c) {
      const f32 d = P::I::template dots<P::code.is_signed, count>(q, a[c]->q + g * Shape<F>::sub);
      acc[c][g % chains] =
          Isa::fma(d, Isa::template spread<P::spread(first)>(scaled[c][P::vector_of(first)]), acc[c][g % chains]);
    }
  }
  // Every lane belongs to one group: all vectors of a span can be added as integers, scales lie in order, and what a
  // lane of every span is multiplied by can wait for the end of the row.
  static constexpr bool turns =
      Isa::can_cross && Shape<F>::can_turn(Isa::max_unsigned) && (uniform || (P::groups == 16 && C::is_small()));
  template <bool of_sums>
  static FEWBIT_INLINE f32 late_weights() {
    alignas(64) static constexpr auto by = [] {
      constexpr int v = C::vectors - 1;
      std::array<float, L> out{};
      for (int l = 0; l < L; ++l) {
        const int place = Shape<F>::turned_place(l);
        out[l] = of_sums ? weight(v, !uniform && l % 2 == 1) / P::lift(v) : 1.0f / (1 << place) / P::lift(0);
      }
      return out;
    }();
    return Isa::loadf(by.data());
  }
  static FEWBIT_INLINE f32 total(const f32* acc) {
    if constexpr (!turns) {
      return Isa::add(acc[0], acc[1]);
    } else {
      static_assert(C::vectors == 1 || !counts<0>);  // sums have one weight
      const f32 dots = Isa::mul(acc[1], late_weights<false>());
      return counts<C::vectors - 1> ? Isa::fma(acc[0], late_weights<true>(), dots) : dots;
    }
  }
  template <int Cols>
  static FEWBIT_INLINE void turned_chunks(const uint8_t* codes, const Activation* const* a,
                                          f32 (*scaled)[C::scale_vectors], f32 (*acc)[chains]) {
    using I = typename P::I;
    typename I::bytes q[4];
    I::template turned<F>(codes, q);
    for (int c = 0; c < Cols; ++c) {
      const int8_t* x = a[c]->turned;
      auto all = Isa::no_ints();
      for (int v = 0; v < 4; ++v) all = Isa::dot_add(all, q[v], x + v * Isa::W);
      acc[c][1] = Isa::fma(Isa::to_floats(all), scaled[c][0], acc[c][1]);
    }
  }
  template <int j, int Cols, bool across = P::across>
  static FEWBIT_INLINE void chunk(const uint8_t* codes, const Activation* const* a, f32 (*scaled)[C::scale_vectors],
                                  f32 (*acc)[chains]) {
    const auto q = P::template codes<j, false, P::stays>(codes);
    for (int c = 0; c < Cols; ++c) {
      const f32 d = Isa::template dot<P::code.is_signed>(q, a[c]->q + j * Isa::W);
      acc[c][j % chains] =
          Isa::fma(d, Isa::template spread<P::spread(j, across)>(scaled[c][P::vector_of(j)]), acc[c][j % chains]);
    }
  }
  // Chunks j and j + 1, taken across: the same scales in the same lanes.
  template <int j, int Cols>
  static FEWBIT_INLINE void two_chunks(const uint8_t* codes, const Activation* const* a,
                                       f32 (*scaled)[C::scale_vectors], f32 (*acc)[chains]) {
    const auto q = P::template codes<j, true, P::stays>(codes), r = P::template codes<j + 1, true, P::stays>(codes);
    for (int c = 0; c < Cols; ++c) {
      const int8_t* x = a[c]->across + j * Isa::W;
      const auto first = Isa::template dot_add<P::code.is_signed>(Isa::no_ints(), q, x);
      const f32 d = Isa::to_floats(Isa::template dot_add<P::code.is_signed>(first, r, x + Isa::W));
      acc[c][j / 2] = Isa::fma(d, Isa::template spread<P::spread(j)>(scaled[c][0]), acc[c][j / 2]);
    }
  }
  // Rows that lie far apart are read in turns, span by span: the memory gives more to several readers than to one.
  // Grids are bound by what they compute.
  template <int Cols>
  static constexpr int places =
      is_grid_span<F>() || P::unpacked || Cols > 2 ? 1 : std::min(Isa::places, Cols == 1 ? 4 : 2);

  // The values of a row that are no whole span.
  template <int Cols>
  static FEWBIT_INLINE void tail(const uint8_t* row, size_t more, size_t k, const Layout& at,
                                 const Activation* const* a, f32 (*acc)[chains]) {
    const size_t whole = k / kSpan, rest = k % kSpan, last_group = Shape<F>::row ? (k - 1) / at.group : 0;
    alignas(64) uint8_t copy[reads];
    Spot s{row + whole * Shape<F>::span_bytes(), row, &at, whole * kSpan, last_group};
    if (!can_end_early || row + more < s.p + reads) s.p = padded_tail<F>(s.p, rest, copy, reads);
    span<Cols, !can_end_early>(s, a, acc, rest);
  }
  // The same out of line, with sums in memory: several columns have time for it, and it is compiled once for all rows.
  template <int Cols>
  static FEWBIT_ONCE void tail_once(const uint8_t* row, size_t more, size_t k, const Layout& at,
                                    const Activation* const* a, f32 (*acc)[chains]) {
    tail<Cols>(row, more, k, at, a, acc);
  }
  // A block that fills a span is whole in memory; past the end of the row activations are 0.
  static constexpr bool ends_whole = !Shape<F>::row && F::block == kSpan;

  // Some rows times some columns: vectors whose lanes are still to be added up. `more`: bytes that can be read from the
  // beginning of a row on.
  template <int Cols, int Rows>
  static FEWBIT_INLINE void row_set(const uint8_t* const* w, const size_t* more, size_t k, const Layout& at,
                                    const Activation* x, size_t x_stride, f32 (*out)[Cols]) {
    constexpr size_t step = Shape<F>::span_bytes();
    const size_t whole = ends_whole ? (k + kSpan - 1) / kSpan : k / kSpan;
    const size_t last_group = Shape<F>::row && k ? (k - 1) / at.group : 0;
    f32 acc[Rows][Cols][chains];
    using Asks = Ahead<Rows, Shape<F>::row>;
    const size_t of_span = Shape<F>::row && whole > 0 ? (at.row_bytes + whole - 1) / whole : step;
    std::array<Asks, Rows> ahead = [&]<int... r>(std::integer_sequence<int, r...>) FEWBIT_LAMBDA_INLINE {
      return std::array{Asks(w[r], at.row_bytes)...};
    }(std::make_integer_sequence<int, Rows>{});
    for (auto& row : acc) {
      for (auto& a : row) a[0] = a[1] = Isa::zero();
    }
    const auto columns = [&](size_t i, const Activation** a) FEWBIT_LAMBDA_INLINE {
      for (int c = 0; c < Cols; ++c) a[c] = x + i + c * x_stride;
    };
    const Activation* a[Cols];
    for (size_t i = 0; i < whole; ++i) {
      columns(i, a);
      for (int r = 0; r < Rows; ++r) {
        if constexpr (Shape<F>::row)
          ahead[r].reach(of_span);
        else
          ahead[r].template reach<step>();
        span<Cols>(Spot{w[r] + i * step, w[r], &at, i * kSpan, last_group}, a, acc[r]);
      }
    }
    if (!ends_whole && k % kSpan != 0) {
      columns(whole, a);
      for (int r = 0; r < Rows; ++r) {
        ahead[r].reach(tail_bytes<F>(k % kSpan));
        if constexpr (Cols == 1) {
          tail<Cols>(w[r], more[r], k, at, a, acc[r]);
        } else {
          f32 own[Cols][chains];  // a copy: what a function is told the place of is kept in memory
          for (int c = 0; c < Cols; ++c) own[c][0] = acc[r][c][0], own[c][1] = acc[r][c][1];
          tail_once<Cols>(w[r], more[r], k, at, a, own);
          for (int c = 0; c < Cols; ++c) acc[r][c][0] = own[c][0], acc[r][c][1] = own[c][1];
        }
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < Cols; ++c) out[r][c] = total(acc[r][c]);
    }
  }
  // Up to four rows, some at each of some places, from row `first` of the place on: their lanes are added up together.
  template <int Cols, int Rows>
  static FEWBIT_INLINE void four_rows(const uint8_t* w, size_t count, size_t first, size_t some, const size_t* place,
                                      size_t k, const Layout& at, const Activation* x, size_t x_stride, float* y,
                                      size_t y_stride) {
    f32 sums[Cols][4], found[Rows][Cols];
    for (auto& s : sums) s[0] = s[1] = s[2] = s[3] = Isa::zero();
    for (size_t i = 0; i < some; ++i) {
      const uint8_t* row[Rows];
      size_t more[Rows];
      for (int r = 0; r < Rows; ++r) {
        const size_t at_row = (place[r] + first + i) * at.row_bytes;
        row[r] = w + at_row;
        more[r] = count * at.row_bytes - at_row;
      }
      row_set<Cols, Rows>(row, more, k, at, x, x_stride, found);
      for (int r = 0; r < Rows; ++r) {
        for (int c = 0; c < Cols; ++c) sums[c][i * Rows + r] = found[r][c];
      }
    }
    for (int c = 0; c < Cols; ++c) {
      float four[4];
      P::I::sums_of_4(sums[c], four);
      for (size_t i = 0; i < some; ++i) {
        for (int r = 0; r < Rows; ++r) y[c * y_stride + place[r] + first + i] = four[i * Rows + r];
      }
    }
  }
  // Each place has as many rows. The last ones may share some, which are then multiplied twice.
  template <int Cols>
  static void rows(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x, size_t x_stride,
                   float* y, size_t y_stride) {
    constexpr size_t Rows = places<Cols>, each = 4 / Rows;
    const size_t of_place = (count + Rows - 1) / Rows;
    size_t place[Rows];
    for (size_t r = 0; r < Rows; ++r) place[r] = std::min(r * of_place, count - of_place);
    for (size_t i = 0; i < of_place; i += each) {
      const size_t some = std::min(of_place - i, each);
      four_rows<Cols, Rows>(w, count, i, some, place, k, at, x, x_stride, y, y_stride);
    }
  }
};

template <class F, class Kernel = Dot<F>>
void dot_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
              size_t y_stride) {
  const size_t spans = (k + kSpan - 1) / kSpan;
  const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
    Kernel::template rows<Cols>(w, rows, k, at, x + c * spans, spans, y + c * y_stride, y_stride);
  };
  size_t c = 0;
  for (; c + 4 <= columns; c += 4) some(std::integral_constant<int, 4>{}, c);
  for (; c + 2 <= columns; c += 2) some(std::integral_constant<int, 2>{}, c);
  if (c < columns) some(std::integral_constant<int, 1>{}, c);
}
