// Rows of the KV cache, read as they are packed: scores of some queries with some keys, and sums of values. A row is
// what one head keeps of one token: whole blocks of 32 values, or plain numbers. Queries, weights and results are
// floats in rows of whole blocks, zero where there is no value.

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
      return F::real == Real::f32 || F::real == Real::f16 || F::real == Real::bf16;
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
    if constexpr (can() && !plain && Isa::can_turn)
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

  // 32 values.
  static FEWBIT_INLINE void read(const uint8_t* p, f32* out) {
    if constexpr (plain) {
      for (int v = 0; v < vectors; ++v) out[v] = I::template reals_at<F::real>(p + v * L * F::bytes);
    } else {
      constexpr bool is_signed = F::codebook.used > 0 || F::codes.is_signed;
      constexpr bool shifts = F::offset.present || (!is_signed && F::codes.zero != 0);
      const f32 scale = I::template splat_real<F::scale.real>(p + F::scale.at);
      f32 m = is_signed || by_table ? Isa::zero() : Isa::mul(scale, Isa::splat(-static_cast<float>(F::codes.zero)));
      if constexpr (F::offset.present) {
        const f32 offset = I::template splat_real<F::offset.real>(p + F::offset.at);
        m = Isa::fma(offset, Isa::splat(static_cast<float>(F::offset_sign)), m);
      }
      if constexpr (by_table) {
        const f32 table =
            shifts_table ? Isa::fma(I::loadf(numbers.data()), scale, m) : Isa::mul(I::loadf(numbers.data()), scale);
        return I::nibbles(table, p + run(0, 0).at, out);
      }
      const f32 d = F::codes.times == 1 ? scale : Isa::mul(scale, Isa::splat(static_cast<float>(F::codes.times)));
      const auto half = [&]<int r>(std::integral_constant<int, r>) FEWBIT_LAMBDA_INLINE {
        auto codes = I::template run<run(0, r)>(p);
        if constexpr (F::codes.pieces(0) > 1) codes = I::either16(codes, I::template run<run(1, r)>(p));
        if constexpr (F::codebook.used > 0) codes = I::template lookup16<F::codebook>(codes);
        f32 x[vectors / 2];
        I::template widen16<is_signed>(codes, x);
        for (int v = 0; v < vectors / 2; ++v) {
          out[r * vectors / 2 + v] = shifts ? Isa::fma(x[v], d, m) : Isa::mul(x[v], d);
        }
      };
      half(std::integral_constant<int, 0>{});
      half(std::integral_constant<int, 1>{});
    }
  }
  // The values from number `first` of a row of `dim`, padded with zeros; `whole`: dim is a multiple of 32.
  template <bool whole>
  static FEWBIT_INLINE void read_at(const uint8_t* row, size_t first, size_t dim, f32* out) {
    const uint8_t* p = row + first / 32 * bytes;
    if constexpr (plain && !whole) {
      if (first + 32 > dim) {
        alignas(64) uint8_t copy[bytes] = {};
        std::memcpy(copy, p, (dim - first) * F::bytes);
        return read(copy, out);
      }
    }
    read(p, out);
  }
};

template <class F, bool whole>
struct Kv {
  using B = KvBlock<F>;
  using f32 = typename Isa::f32;
  static constexpr int tile = Isa::can_turn ? 4 : 2;  // rows and tokens at once, as registers allow

  static FEWBIT_INLINE void read_row(const uint8_t* row, size_t first, size_t dim, f32* out) {
    B::template read_at<whole>(row, first, dim, out);
  }
  // What comes next is brought near, what comes later to the second-level cache. A core has few places to wait for
  // lines that somebody asks for; the rest comes by itself where lines are asked for in order, more of it from two
  // places.
  static FEWBIT_INLINE void ask(KvAhead ahead, size_t at, size_t bytes) {
    if (!ahead.next) return;
    for (size_t c = (at + 127) / 128 * 128; c < at + bytes; c += 128) {
      __builtin_prefetch(ahead.next + c, 0, 3);
      __builtin_prefetch(ahead.next + c + 64, 0, 3);
      __builtin_prefetch(ahead.later[0] + c / 2, 0, 2);
      __builtin_prefetch(ahead.later[1] + c / 2, 0, 2);
    }
  }
  template <int Rows, int Tokens>
  static FEWBIT_INLINE void score(const float* q, size_t stride, const uint8_t* k, size_t row_bytes, size_t dim,
                                  float* s) {
    f32 acc[Rows * Tokens];
    for (auto& a : acc) a = Isa::zero();
    for (size_t d = 0; d < dim; d += 32) {
      f32 x[Tokens][B::vectors];
      for (int t = 0; t < Tokens; ++t) read_row(k + t * row_bytes, d, dim, x[t]);
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < B::vectors; ++v) {
          const f32 y = Isa::loadf(q + r * stride + d + v * Isa::L);
          for (int t = 0; t < Tokens; ++t) acc[r * Tokens + t] = Isa::fma(x[t][v], y, acc[r * Tokens + t]);
        }
      }
    }
    float sums[Rows * Tokens];
    if constexpr (Isa::can_turn && Rows * Tokens == 16) {
      Own<F>::type::sums_of_16(acc, sums);
    } else {
      for (int i = 0; i < Rows * Tokens; ++i) sums[i] = Isa::sum(acc[i]);
    }
    for (int r = 0; r < Rows; ++r) std::memcpy(s + r * kKvTokens, sums + r * Tokens, Tokens * sizeof(float));
  }
  template <int Rows>
  static void score_rows(const float* q, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes, size_t dim,
                         KvAhead ahead, float* s) {
    constexpr int some = Rows < tile ? tile * tile / Rows : tile;
    size_t t = 0;
    for (; t + some <= tokens; t += some) {
      ask(ahead, t * row_bytes, some * row_bytes);
      score<Rows, some>(q, stride, k + t * row_bytes, row_bytes, dim, s + t);
    }
    for (; t < tokens; ++t) score<Rows, 1>(q, stride, k + t * row_bytes, row_bytes, dim, s + t);
  }
  // `Chunk` blocks of some rows of results, from value `first` on.
  template <int Rows, int Chunk>
  static FEWBIT_INLINE void add(const float* p, const uint8_t* v, size_t tokens, size_t row_bytes, size_t first,
                                size_t dim, KvAhead ahead, float* out, size_t stride) {
    constexpr int vectors = Chunk * B::vectors;
    f32 acc[Rows][vectors];
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) acc[r][i] = Isa::loadf(out + r * stride + first + i * Isa::L);
    }
    for (size_t t = 0; t < tokens; ++t) {
      f32 x[vectors];
      ask(ahead, (first / (32 * Chunk) * tokens + t) * (Chunk * B::bytes), Chunk * B::bytes);
      for (int c = 0; c < Chunk; ++c) read_row(v + t * row_bytes, first + 32 * c, dim, x + c * B::vectors);
      for (int r = 0; r < Rows; ++r) {
        const f32 w = Isa::splat(p[r * kKvTokens + t]);
        for (int i = 0; i < vectors; ++i) acc[r][i] = Isa::fma(x[i], w, acc[r][i]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < vectors; ++i) Isa::storef(out + r * stride + first + i * Isa::L, acc[r][i]);
    }
  }
  template <int Rows>
  static void add_rows(const float* p, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim, KvAhead ahead,
                       float* out, size_t stride) {
    constexpr int most = Isa::can_turn ? 2 : 1;  // blocks at once
    size_t first = 0;
    for (; first + 32 * most <= dim; first += 32 * most) {
      add<Rows, most>(p, v, tokens, row_bytes, first, dim, ahead, out, stride);
    }
    for (; first < dim; first += 32) add<Rows, 1>(p, v, tokens, row_bytes, first, dim, ahead, out, stride);
  }
};

// Calls f(rows, first) for up to `tile` rows at a time.
template <int tile, class Fn>
FEWBIT_INLINE void by_rows(size_t rows, Fn&& f) {
  size_t r = 0;
  if constexpr (tile == 4) {
    for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>{}, r);
  }
  for (; r + 2 <= rows; r += 2) f(std::integral_constant<int, 2>{}, r);
  if (r < rows) f(std::integral_constant<int, 1>{}, r);
}

// Calls f(Kv) for rows that are whole blocks, or not.
template <class F, class Fn>
FEWBIT_INLINE void by_dim(size_t dim, Fn&& f) {
  if (KvBlock<F>::plain && dim % 32 != 0)
    f(Kv<F, false>{});
  else
    f(Kv<F, true>{});
}

// s[row][token] = q[row] . k[token], for at most kKvTokens tokens.
template <class F>
void kv_scores(const float* q, size_t rows, size_t stride, const uint8_t* k, size_t tokens, size_t row_bytes,
               size_t dim, KvAhead ahead, float* s) {
  by_dim<F>(dim, [&]<class K>(K) {
    by_rows<K::tile>(rows, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      K::template score_rows<n>(q + r * stride, stride, k, tokens, row_bytes, dim, ahead, s + r * kKvTokens);
    });
  });
}
// out[row] += sum of p[row][token] * v[token].
template <class F>
void kv_values(const float* p, size_t rows, const uint8_t* v, size_t tokens, size_t row_bytes, size_t dim,
               KvAhead ahead, float* out, size_t stride) {
  by_dim<F>(dim, [&]<class K>(K) {
    by_rows<K::tile>(rows, [&]<int n>(std::integral_constant<int, n>, size_t r) {
      K::template add_rows<n>(p + r * kKvTokens, v, tokens, row_bytes, dim, ahead, out + r * stride, stride);
    });
  });
}
template <class F>
void kv_floats(const uint8_t* x, size_t tokens, size_t row_bytes, size_t dim, KvAhead ahead, float* out,
               size_t stride) {
  by_dim<F>(dim, [&]<class K>(K) {
    for (size_t t = 0; t < tokens; ++t) {
      K::ask(ahead, t * row_bytes, row_bytes);
      for (size_t d = 0; d < dim; d += 32) {
        typename Isa::f32 v[K::B::vectors];
        K::read_row(x + t * row_bytes, d, dim, v);
        for (int i = 0; i < K::B::vectors; ++i) Isa::storef(out + t * stride + d + i * Isa::L, v[i]);
      }
    }
  });
}

// Rows of scores to weights, exp(score - max). The largest so far and the sum so far of each row are brought up to
// date; what was summed before has to be multiplied by `factors`. Weights past `tokens`, up to a whole vector, are 0.
// A score that is only a little larger than the largest does not take its place: weights may well be a little above 1,
// and nothing has to be multiplied.
constexpr float kSlack = 8, kNoScore = -__builtin_inff();

template <int Rows, class Tokens>
FEWBIT_INLINE void largest_of_rows(const float* s, Tokens tokens, typename Isa::f32* out) {
  for (int r = 0; r < Rows; ++r) {
    out[r] = Isa::loadu(s + r * kKvTokens);
    for (size_t t = Isa::L; t < tokens; t += Isa::L) out[r] = Isa::larger(Isa::loadu(s + r * kKvTokens + t), out[r]);
  }
}
// Some row has no largest yet, or a score above what its weights may be beside it.
template <int Rows>
FEWBIT_INLINE bool has_new_top(const typename Isa::f32* largest, const KvState* state) {
  auto above = Isa::add(largest[0], Isa::splat(-kSlack - state[0].max));
  bool first = state[0].max == kNoScore;
  for (int r = 1; r < Rows; ++r) {
    above = Isa::larger(above, Isa::add(largest[r], Isa::splat(-kSlack - state[r].max)));
    first |= state[r].max == kNoScore;
  }
  return first || Isa::any_positive(above);
}
template <class State, int Rows>
FEWBIT_INLINE void new_tops(const typename Isa::f32* largest, State* state, float* factors) {
  float tops[Rows];
  if constexpr (Rows == 4) {
    Own<State>::type::tops_of_4(largest, tops);
  } else {
    for (int r = 0; r < Rows; ++r) tops[r] = Isa::top(largest[r]);
  }
  for (int r = 0; r < Rows; ++r) {
    const float before = state[r].max;  // before the first all is 0, and may stay so
    if (tops[r] > before + kSlack) state[r].max = tops[r];
    factors[r] = before == state[r].max || before == kNoScore ? 1 : __builtin_expf(before - state[r].max);
    state[r].sum *= factors[r];
  }
}
template <class State, int Rows, class Tokens>
FEWBIT_INLINE void weigh_rows(float* s, Tokens tokens, State* state, float* factors) {
  typename Isa::f32 v[Rows];
  for (int r = 0; r < Rows; ++r) {
    for (size_t t = tokens; t % Isa::L != 0; ++t) s[r * kKvTokens + t] = kNoScore;
    factors[r] = 1;
  }
  largest_of_rows<Rows>(s, tokens, v);
  if (has_new_top<Rows>(v, state)) new_tops<State, Rows>(v, state, factors);
  for (int r = 0; r < Rows; ++r) {
    const auto shift = Isa::splat(state[r].max == kNoScore ? 0 : -state[r].max);
    v[r] = Isa::zero();
    for (size_t t = 0; t < tokens; t += Isa::L) {
      const auto w = Isa::exp(Isa::add(Isa::loadu(s + r * kKvTokens + t), shift));
      Isa::storef(s + r * kKvTokens + t, w);
      v[r] = Isa::add(v[r], w);
    }
  }
  float sums[Rows];
  if constexpr (Rows == 4) {
    Own<State>::type::sums_of_4(v, sums);
  } else {
    for (int r = 0; r < Rows; ++r) sums[r] = Isa::sum(v[r]);
  }
  for (int r = 0; r < Rows; ++r) state[r].sum += sums[r];
}
inline void kv_weigh(float* s, size_t rows, size_t tokens, KvState* state, float* factors) {
  size_t r = 0;
  if constexpr (Isa::can_turn) {
    constexpr auto all = std::integral_constant<size_t, kKvTokens>{};
    for (; r + 4 <= rows; r += 4) {
      if (tokens == all)
        weigh_rows<KvState, 4>(s + r * kKvTokens, all, state + r, factors + r);
      else
        weigh_rows<KvState, 4>(s + r * kKvTokens, tokens, state + r, factors + r);
    }
  }
  for (; r < rows; ++r) weigh_rows<KvState, 1>(s + r * kKvTokens, tokens, state + r, factors + r);
}

inline void kv_scale(const float* x, size_t count, float by, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = x[i] * by;
}

// out = by times the normalized Hadamard transform of `size` values, a power of two; x may be out. The order of its
// steps does not matter.
template <class T, int vectors>
FEWBIT_INLINE void rotate_in_registers(const T* x, float by, T* out) {
  using I = typename Own<T>::type;
  const auto times = Isa::splat(by), minus = Isa::splat(-1);
  typename Isa::f32 v[vectors];
  for (int i = 0; i < vectors; ++i) v[i] = Isa::mul(I::hadamard(Isa::loadu(x + i * Isa::L)), times);
  for (int h = 1; h < vectors; h *= 2) {
    for (int i = 0; i < vectors; ++i) {
      if ((i & h) != 0) continue;
      const auto a = v[i], b = v[i + h];
      v[i] = Isa::add(a, b);
      v[i + h] = Isa::fma(b, minus, a);
    }
  }
  for (int i = 0; i < vectors; ++i) Isa::storef(out + i * Isa::L, v[i]);
}
template <class T>
FEWBIT_INLINE bool rotate_quickly(const T* x, size_t size, float by, T* out) {
  if constexpr (Isa::can_turn) {
    if (size == 4 * Isa::L) return rotate_in_registers<T, 4>(x, by, out), true;
    if (size == 8 * Isa::L) return rotate_in_registers<T, 8>(x, by, out), true;
    if (size == 16 * Isa::L) return rotate_in_registers<T, 16>(x, by, out), true;
  }
  return false;
}
inline void kv_rotate(const float* x, size_t size, float by, float* out) {
  by /= __builtin_sqrtf(static_cast<float>(size));
  if (rotate_quickly(x, size, by, out)) return;
  if (x != out) std::memcpy(out, x, size * sizeof(float));
  for (size_t h = 1; h < size; h *= 2) {
    for (size_t i = 0; i < size; i += 2 * h) {
      for (size_t j = i; j < i + h; ++j) {
        const float a = out[j], b = out[j + h];
        out[j] = a + b;
        out[j + h] = a - b;
      }
    }
  }
  for (size_t i = 0; i < size; ++i) out[i] *= by;
}
