// A packed row times 8-bit activations, for up to four columns at once. Zero points and offsets meet the sums of the
// activations in one multiply-add for each vector of factors; the codes meet them in integer dot products. The order of
// the float sums is the same for any number of columns.

// Prefetches what will be read soon, each cache line once: far off into the second-level cache, nearer into the first.
// Past the end of the weights this does nothing. The more streams are read alternately, the nearer; with `by_rows`
// at least a row further: scales that stand at the end of a row are needed with its first codes.
template <int streams = 1, bool by_rows = false>
class Prefetcher {
 public:
  FEWBIT_INLINE explicit Prefetcher(const uint8_t* p, size_t row_bytes = 0)
      : next_(reinterpret_cast<uintptr_t>(p)), row_bytes_(row_bytes) {}
  template <int bytes>
  FEWBIT_INLINE void reach() {  // `bytes` bytes further than before
    if constexpr (!prefetches) return;
    end_ += bytes;
    for (int c = 0; c < bytes / 64; ++c) line();
    if (bytes % 64 != 0 && next_ < end_) line();
  }
  FEWBIT_INLINE void reach(size_t bytes) {
    if constexpr (!prefetches) return;
    for (end_ += bytes; next_ < end_;) line();
  }

 private:
  static constexpr bool prefetches = Isa::prefetch_far > 0 || Isa::prefetch_near > 0;
  FEWBIT_INLINE void line() {
    constexpr size_t far = Isa::prefetch_far / streams;
    const size_t distance = by_rows && row_bytes_ > far ? row_bytes_ : far;
    __builtin_prefetch(reinterpret_cast<const void*>(next_ + distance), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(next_ + Isa::prefetch_near / (streams > 1 ? 2 : 1)), 0, 3);
    next_ += 64;
  }
  uintptr_t next_, end_ = next_;
  size_t row_bytes_;
};

template <class F>
struct Gemv {
  using P = KBlock<F>;
  using C = typename P::C;
  using f32 = typename Isa::f32;
  static constexpr int L = Isa::L, chains = 2;
  // One scale for the whole k-block, in every lane.
  static constexpr bool uniform = P::strided && F::placement == Placement::block && F::group == kBlockK && !C::offset;
  static constexpr bool by_16 = C::paired || P::groups == 16;

  static FEWBIT_INLINE const float* scales(const Activation& a) {
    return transposes ? a.d_transposed : by_16 ? a.d16 : a.d32;
  }
  static FEWBIT_INLINE const float* sums(const Activation& a) {
    if constexpr (transposes) return a.s_transposed;
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
    if constexpr (transposes && counts<v>) {  // weighted at the end of the row
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
  // The last values of a row may be fewer than a k-block. What lies past them is the next row, and counts nothing.
  static constexpr bool can_end_early = F::placement == Placement::block && F::block < kBlockK;
  static constexpr size_t reads = Shape<F>::k_block_bytes() + 64;  // at most, from where a k-block begins
  alignas(64) static constexpr auto first_groups = [] {            // ones in the lanes of the first groups
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
  static FEWBIT_INLINE void k_block(const Spot& s, const Activation* const* a, f32 (*acc)[chains],
                                    size_t count = kBlockK) {
    if constexpr (is_grid_k_block<F>()) {
      return GridKBlock<F>::template k_block<Cols>(s.p, a, acc);
    } else {
      any_k_block<Cols, whole>(s, a, acc, count);
    }
  }
  template <int Cols, bool whole>
  static FEWBIT_INLINE void any_k_block(const Spot& s, const Activation* const* a, f32 (*acc)[chains], size_t count) {
    f32 factors[C::vectors], scaled[Cols][C::scale_vectors];
    P::template factors<transposes>(s, factors);
    if constexpr (!whole) {
      const uint32_t* ones = first_groups[(count + Shape<F>::group_size - 1) / Shape<F>::group_size].data();
      for (int v = 0; v < C::vectors; ++v) factors[v] = Isa::only(factors[v], ones + v * L);
    }
    [&]<int... v>(std::integer_sequence<int, v...>) FEWBIT_LAMBDA_INLINE {
      (add_sums<v, Cols>(factors[v], a, acc), ...);
    }(std::make_integer_sequence<int, C::vectors>{});
    for (int v = 0; v < C::scale_vectors; ++v) {
      if constexpr (P::code.times != 1) {
        factors[v] = Isa::mul(factors[v], Isa::splat(static_cast<float>(P::code.times)));
      }
      if constexpr (P::unshifted && !transposes) factors[v] = Isa::mul(factors[v], P::unshift());
      for (int c = 0; c < Cols; ++c) scaled[c][v] = Isa::mul(factors[v], Isa::loadf(scales(*a[c]) + v * L));
    }
    if constexpr (joins) {
      [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
        ((g * Shape<F>::group_size < static_cast<int>(count) ? group<g, Cols>(s.p, a, scaled, acc) : void()), ...);
      }(std::make_integer_sequence<int, P::groups>{});
    } else if constexpr (!whole) {
      [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
        ((j * Isa::W < static_cast<int>(count) ? chunk<j, Cols, false>(s.p, a, scaled, acc) : void()), ...);
      }(std::make_integer_sequence<int, P::chunks>{});
    } else if constexpr (transposes) {
      transposed_chunks<Cols>(s.p, a, scaled, acc);
    } else if constexpr (P::strided) {
      two_chunks<0, Cols>(s.p, a, scaled, acc);
      two_chunks<2, Cols>(s.p, a, scaled, acc);
    } else {
      [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
        (chunk<j, Cols>(s.p, a, scaled, acc), ...);
      }(std::make_integer_sequence<int, P::chunks>{});
    }
  }
  // A group is several vectors: their dot products are added as integers and meet the scale together.
  static constexpr bool joins = Isa::W < Shape<F>::group_size;
  template <int g, int Cols>
  static FEWBIT_INLINE void group(const uint8_t* codes, const Activation* const* a, f32 (*scaled)[C::scale_vectors],
                                  f32 (*acc)[chains]) {
    constexpr int count = Shape<F>::group_size / Isa::W, first = g * count;
    typename Isa::bytes q[count];
    [&]<int... i>(std::integer_sequence<int, i...>) FEWBIT_LAMBDA_INLINE {
      ((q[i] = P::template codes<first + i>(codes)), ...);
    }(std::make_integer_sequence<int, count>{});
    for (int c = 0; c < Cols; ++c) {
      const f32 d = P::I::template dots<P::code.is_signed, count>(q, a[c]->q + g * Shape<F>::group_size);
      acc[c][g % chains] =
          Isa::fma(d, Isa::template spread<P::spread(first)>(scaled[c][P::vector_of(first)]), acc[c][g % chains]);
    }
  }
  // Every lane belongs to one group: all vectors of a k-block can be added as integers, scales lie in order, and what a
  // lane of every k-block is multiplied by can wait for the end of the row.
  static constexpr bool transposes =
      Isa::can_stride && Shape<F>::can_transpose(Isa::max_unsigned) && (uniform || (P::groups == 16 && C::is_small()));
  template <bool of_sums>
  static FEWBIT_INLINE f32 row_weights() {
    alignas(64) static constexpr auto by = [] {
      constexpr int v = C::vectors - 1;
      std::array<float, L> out{};
      for (int l = 0; l < L; ++l) {
        const int shift = Shape<F>::transposed_shift(l);
        out[l] = of_sums ? weight(v, !uniform && l % 2 == 1) / P::lift(v) : 1.0f / (1 << shift) / P::lift(0);
      }
      return out;
    }();
    return Isa::loadf(by.data());
  }
  static FEWBIT_INLINE f32 total(const f32* acc) {
    if constexpr (!transposes) {
      return Isa::add(acc[0], acc[1]);
    } else {
      static_assert(C::vectors == 1 || !counts<0>);  // sums have one weight
      const f32 dots = Isa::mul(acc[1], row_weights<false>());
      return counts<C::vectors - 1> ? Isa::fma(acc[0], row_weights<true>(), dots) : dots;
    }
  }
  template <int Cols>
  static FEWBIT_INLINE void transposed_chunks(const uint8_t* codes, const Activation* const* a,
                                              f32 (*scaled)[C::scale_vectors], f32 (*acc)[chains]) {
    using I = typename P::I;
    typename I::bytes q[4];
    I::template transposed<F>(codes, q);
    for (int c = 0; c < Cols; ++c) {
      const int8_t* x = a[c]->transposed;
      auto all = Isa::no_ints();
      for (int v = 0; v < 4; ++v) all = Isa::dot_add(all, q[v], x + v * Isa::W);
      acc[c][1] = Isa::fma(Isa::to_floats(all), scaled[c][0], acc[c][1]);
    }
  }
  template <int j, int Cols, bool strided = P::strided>
  static FEWBIT_INLINE void chunk(const uint8_t* codes, const Activation* const* a, f32 (*scaled)[C::scale_vectors],
                                  f32 (*acc)[chains]) {
    const auto q = P::template codes<j, false, P::unshifted>(codes);
    for (int c = 0; c < Cols; ++c) {
      const f32 d = Isa::template dot<P::code.is_signed>(q, a[c]->q + j * Isa::W);
      acc[c][j % chains] =
          Isa::fma(d, Isa::template spread<P::spread(j, strided)>(scaled[c][P::vector_of(j)]), acc[c][j % chains]);
    }
  }
  // Chunks j and j + 1, taken in strided order: the same scales in the same lanes.
  template <int j, int Cols>
  static FEWBIT_INLINE void two_chunks(const uint8_t* codes, const Activation* const* a,
                                       f32 (*scaled)[C::scale_vectors], f32 (*acc)[chains]) {
    const auto q = P::template codes<j, true, P::unshifted>(codes),
               r = P::template codes<j + 1, true, P::unshifted>(codes);
    for (int c = 0; c < Cols; ++c) {
      const int8_t* x = a[c]->strided + j * Isa::W;
      const auto first = Isa::template dot_add<P::code.is_signed>(Isa::no_ints(), q, x);
      const f32 d = Isa::to_floats(Isa::template dot_add<P::code.is_signed>(first, r, x + Isa::W));
      acc[c][j / 2] = Isa::fma(d, Isa::template spread<P::spread(j)>(scaled[c][0]), acc[c][j / 2]);
    }
  }
  // Rows that lie far apart are read alternately, k-block by k-block: the memory gives more to several readers than to
  // one. Grids are bound by what they compute.
  template <int Cols>
  static constexpr int streams = is_grid_k_block<F>() || Cols > 2 ? 1 : std::min(Isa::streams, Cols == 1 ? 4 : 2);

  // The values of a row that are no whole k-block.
  template <int Cols>
  static FEWBIT_INLINE void tail(const uint8_t* row, size_t more, size_t k, const Layout& at,
                                 const Activation* const* a, f32 (*acc)[chains]) {
    const size_t whole = k / kBlockK, rest = k % kBlockK, last_group = Shape<F>::row ? (k - 1) / at.group : 0;
    alignas(64) uint8_t copy[reads];
    Spot s{row + whole * Shape<F>::k_block_bytes(), row, &at, whole * kBlockK, last_group};
    if (!can_end_early || row + more < s.p + reads) s.p = padded_tail<F>(s.p, rest, copy, reads);
    k_block<Cols, !can_end_early>(s, a, acc, rest);
  }
  // The same out of line, with sums in memory: several columns have time for it, and it is compiled once for all rows.
  template <int Cols>
  static FEWBIT_ONCE void tail_once(const uint8_t* row, size_t more, size_t k, const Layout& at,
                                    const Activation* const* a, f32 (*acc)[chains]) {
    tail<Cols>(row, more, k, at, a, acc);
  }
  // A block that fills a k-block is whole in memory; past the end of the row activations are 0.
  static constexpr bool ends_whole = !Shape<F>::row && F::block == kBlockK;

  // Some rows times some columns: vectors whose lanes are still to be added up. `more`: bytes that can be read from the
  // beginning of a row on.
  template <int Cols, int Rows>
  static FEWBIT_INLINE void row_set(const uint8_t* const* w, const size_t* more, size_t k, const Layout& at,
                                    const Activation* x, size_t x_stride, f32 (*out)[Cols]) {
    constexpr size_t step = Shape<F>::k_block_bytes();
    const size_t whole = ends_whole ? (k + kBlockK - 1) / kBlockK : k / kBlockK;
    const size_t last_group = Shape<F>::row && k ? (k - 1) / at.group : 0;
    f32 acc[Rows][Cols][chains];
    using Prefetch = Prefetcher<Rows, Shape<F>::row>;
    const size_t of_k_block = Shape<F>::row && whole > 0 ? (at.row_bytes + whole - 1) / whole : step;
    std::array<Prefetch, Rows> prefetchers = [&]<int... r>(std::integer_sequence<int, r...>) FEWBIT_LAMBDA_INLINE {
      return std::array{Prefetch(w[r], at.row_bytes)...};
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
          prefetchers[r].reach(of_k_block);
        else
          prefetchers[r].template reach<step>();
        k_block<Cols>(Spot{w[r] + i * step, w[r], &at, i * kBlockK, last_group}, a, acc[r]);
      }
    }
    if (!ends_whole && k % kBlockK != 0) {
      columns(whole, a);
      for (int r = 0; r < Rows; ++r) {
        prefetchers[r].reach(tail_bytes<F>(k % kBlockK));
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
  // Up to four rows, some of each of some streams, from row `first` of the stream on: their lanes are added up
  // together.
  template <int Cols, int Rows>
  static FEWBIT_INLINE void four_rows(const uint8_t* w, size_t count, size_t first, size_t some, const size_t* stream,
                                      size_t k, const Layout& at, const Activation* x, size_t x_stride, float* y,
                                      size_t y_stride) {
    f32 sums[Cols][4], found[Rows][Cols];
    for (auto& s : sums) s[0] = s[1] = s[2] = s[3] = Isa::zero();
    for (size_t i = 0; i < some; ++i) {
      const uint8_t* row[Rows];
      size_t more[Rows];
      for (int r = 0; r < Rows; ++r) {
        const size_t at_row = (stream[r] + first + i) * at.row_bytes;
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
        for (int r = 0; r < Rows; ++r) y[c * y_stride + stream[r] + first + i] = four[i * Rows + r];
      }
    }
  }
  // Each stream has as many rows. The last ones may share some, which are then multiplied twice.
  template <int Cols>
  static void rows(const uint8_t* w, size_t count, size_t k, const Layout& at, const Activation* x, size_t x_stride,
                   float* y, size_t y_stride) {
    constexpr size_t Rows = streams<Cols>, each = 4 / Rows;
    const size_t of_stream = (count + Rows - 1) / Rows;
    size_t stream[Rows];
    for (size_t r = 0; r < Rows; ++r) stream[r] = std::min(r * of_stream, count - of_stream);
    for (size_t i = 0; i < of_stream; i += each) {
      const size_t some = std::min(of_stream - i, each);
      four_rows<Cols, Rows>(w, count, i, some, stream, k, at, x, x_stride, y, y_stride);
    }
  }
};

template <class F, class Kernel = Gemv<F>>
void gemv_rows(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns, float* y,
               size_t y_stride) {
  const size_t k_blocks = (k + kBlockK - 1) / kBlockK;
  const auto some = [&]<int Cols>(std::integral_constant<int, Cols>, size_t c) {
    Kernel::template rows<Cols>(w, rows, k, at, x + c * k_blocks, k_blocks, y + c * y_stride, y_stride);
  };
  size_t c = 0;
  if constexpr (Isa::registers > 0) {
    for (; c + 4 <= columns; c += 4) some(std::integral_constant<int, 4>{}, c);
    for (; c + 2 <= columns; c += 2) some(std::integral_constant<int, 2>{}, c);
  }
  for (; c < columns; ++c) some(std::integral_constant<int, 1>{}, c);
}
