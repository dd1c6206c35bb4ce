// Scores to weights, and what else attention does with rows of floats.

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
  if constexpr (Isa::can_transform) {
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
  if constexpr (Isa::can_transform) {
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
