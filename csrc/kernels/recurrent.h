// Recurrent layers: a convolution of rows, and the state of a head, changed by one token after another. Sums have the
// same order for any number of tokens, so that results do not depend on how a prompt is cut.

inline void conv_columns(const float* const* rows, size_t taps, const float* weight, size_t stride, const float* bias,
                         size_t n, float* out) {
  constexpr size_t L = Isa::L;
  size_t i = 0;
  for (; i + L <= n; i += L) {
    auto sum = bias ? Isa::loadu(bias + i) : Isa::zero();
    for (size_t tap = 0; tap < taps; ++tap) {
      sum = Isa::fma(Isa::loadu(rows[tap] + i), Isa::loadu(weight + tap * stride + i), sum);
    }
    Isa::storef(out + i, sum);
  }
  for (; i < n; ++i) {
    float sum = bias ? bias[i] : 0;
    for (size_t tap = 0; tap < taps; ++tap) sum += rows[tap][i] * weight[tap * stride + i];
    out[i] = sum;
  }
}

struct StateRows {  // columns of a state: rows that are `stride` floats apart
  const float* from;
  size_t from_stride;
  float* to;
  size_t to_stride;
};

// What the rows of the state, times k, add up to.
template <int N>
FEWBIT_INLINE void sum_rows(const StateRows& s, size_t dim, const float* k, typename Isa::f32 (&out)[N]) {
  using f32 = typename Isa::f32;
  constexpr size_t L = Isa::L;
  f32 odd[N];
  for (int n = 0; n < N; ++n) out[n] = odd[n] = Isa::zero();
  size_t i = 0;
  for (; i + 2 <= dim; i += 2) {
    const float* row = s.from + i * s.from_stride;
    const f32 a = Isa::splat(k[i]), b = Isa::splat(k[i + 1]);
    for (int n = 0; n < N; ++n) out[n] = Isa::fma(a, Isa::loadu(row + n * L), out[n]);
    for (int n = 0; n < N; ++n) odd[n] = Isa::fma(b, Isa::loadu(row + s.from_stride + n * L), odd[n]);
  }
  if (i < dim) {
    const f32 a = Isa::splat(k[i]);
    for (int n = 0; n < N; ++n) out[n] = Isa::fma(a, Isa::loadu(s.from + i * s.from_stride + n * L), out[n]);
  }
  for (int n = 0; n < N; ++n) out[n] = Isa::add(out[n], odd[n]);
}

// state = fade * state + outer(in, change); what its rows, times `read`, add up to.
template <int N>
FEWBIT_INLINE void change_rows(const StateRows& s, size_t dim, float by, const float* in, const float* read,
                               const typename Isa::f32 (&change)[N], typename Isa::f32 (&out)[N]) {
  using f32 = typename Isa::f32;
  constexpr size_t L = Isa::L;
  const f32 fade = Isa::splat(by);
  for (int n = 0; n < N; ++n) out[n] = Isa::zero();
  for (size_t i = 0; i < dim; ++i) {
    const f32 a = Isa::splat(in[i]), b = Isa::splat(read[i]);
    const float* from = s.from + i * s.from_stride;
    float* to = s.to + i * s.to_stride;
    for (int n = 0; n < N; ++n) {
      const f32 h = Isa::fma(a, change[n], Isa::mul(fade, Isa::loadu(from + n * L)));
      Isa::storef(to + n * L, h);
      out[n] = Isa::fma(b, h, out[n]);
    }
  }
}

// Calls f(token, rows of the state), for columns from `at` on. Between several tokens the state lies in `kept`: in its
// own place the rows of a head would share few sets of the first-level cache.
template <class Fn>
FEWBIT_INLINE void each_token(const StateHead& h, size_t at, size_t columns, Fn&& f) {
  constexpr size_t room = 8192;
  alignas(64) float kept[room];
  const bool keeps = h.tokens > 1 && h.dim * columns <= room;
  float* const between = keeps ? kept : h.to + at;
  const size_t stride = keeps ? columns : h.v_dim;
  for (size_t t = 0; t < h.tokens; ++t) {
    const bool first = t == 0, last = t + 1 == h.tokens;
    f(t, StateRows{first ? h.from + at : between, first ? h.v_dim : stride, last ? h.to + at : between,
                   last ? h.v_dim : stride});
  }
}

template <int N>
FEWBIT_INLINE void delta_columns(const StateHead& h, size_t at) {
  constexpr size_t L = Isa::L;
  each_token(h, at, N * L, [&](size_t t, const StateRows& s) FEWBIT_LAMBDA_INLINE {
    const float *k = h.in + t * h.in_stride, *q = h.read + t * h.in_stride, fade = h.fade[t * h.gate_stride];
    typename Isa::f32 known[N], change[N], y[N];
    sum_rows<N>(s, h.dim, k, known);
    const auto learn = Isa::splat(h.gate[t * h.gate_stride]), less = Isa::splat(-fade);
    for (int n = 0; n < N; ++n) {
      change[n] = Isa::mul(learn, Isa::fma(less, known[n], Isa::loadu(h.v + t * h.v_stride + at + n * L)));
    }
    change_rows<N>(s, h.dim, fade, k, q, change, y);
    const auto factor = Isa::splat(h.factor);
    for (int n = 0; n < N; ++n) Isa::storef(h.out + t * h.v_stride + at + n * L, Isa::mul(factor, y[n]));
  });
}

template <int N>
FEWBIT_INLINE void scan_columns(const StateHead& h, size_t at) {
  constexpr size_t L = Isa::L;
  each_token(h, at, N * L, [&](size_t t, const StateRows& s) FEWBIT_LAMBDA_INLINE {
    const float *b = h.in + t * h.in_stride, *c = h.read + t * h.in_stride;
    typename Isa::f32 x[N], change[N], y[N];
    const auto step = Isa::splat(h.gate[t * h.gate_stride]), factor = Isa::splat(h.factor);
    for (int n = 0; n < N; ++n) x[n] = Isa::loadu(h.v + t * h.v_stride + at + n * L);
    for (int n = 0; n < N; ++n) change[n] = Isa::mul(step, x[n]);
    change_rows<N>(s, h.dim, h.fade[t * h.gate_stride], b, c, change, y);
    for (int n = 0; n < N; ++n) Isa::storef(h.out + t * h.v_stride + at + n * L, Isa::fma(factor, x[n], y[n]));
  });
}

// Columns that are no whole vector, one by one.
template <bool is_delta>
inline void one_column(const StateHead& h, size_t at) {
  const float* from = h.from + at;
  float* to = h.to + at;
  for (size_t t = 0; t < h.tokens; ++t, from = to) {
    const float *in = h.in + t * h.in_stride, *read = h.read + t * h.in_stride;
    const float fade = h.fade[t * h.gate_stride], gate = h.gate[t * h.gate_stride], v = h.v[t * h.v_stride + at];
    float known = 0, y = 0;
    for (size_t i = 0; is_delta && i < h.dim; ++i) known += in[i] * from[i * h.v_dim];
    const float change = gate * (v - fade * known);
    for (size_t i = 0; i < h.dim; ++i) {
      const float s = fade * from[i * h.v_dim] + in[i] * change;
      to[i * h.v_dim] = s;
      y += read[i] * s;
    }
    h.out[t * h.v_stride + at] = is_delta ? h.factor * y : y + h.factor * v;
  }
}

inline void delta_rule(const StateHead& h, size_t begin, size_t end) {
  constexpr size_t L = Isa::L;
  for (; begin + 4 * L <= end; begin += 4 * L) delta_columns<4>(h, begin);
  for (; begin + L <= end; begin += L) delta_columns<1>(h, begin);
  for (; begin < end; ++begin) one_column<true>(h, begin);
}

inline void scan(const StateHead& h, size_t begin, size_t end) {
  constexpr size_t L = Isa::L;
  for (; begin + 4 * L <= end; begin += 4 * L) scan_columns<4>(h, begin);
  for (; begin + L <= end; begin += L) scan_columns<1>(h, begin);
  for (; begin < end; ++begin) one_column<false>(h, begin);
}
