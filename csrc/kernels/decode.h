// Packed rows to floats: number * scale + offset, each operation rounded once, as the NumPy decoder does it.

template <class F>
struct Decode {
  using P = KBlock<F>;
  static constexpr int W = Isa::W, L = Isa::L;

  template <int j>
  static FEWBIT_INLINE void chunk(const uint8_t* codes, const float* scale, const float* offset, float* out) {
    const auto v = P::template codes<j>(codes);
    [&]<int... part>(std::integer_sequence<int, part...>) FEWBIT_LAMBDA_INLINE {
      (
          [&]() FEWBIT_LAMBDA_INLINE {
            constexpr int value = j * W + part * L, g = value / Shape<F>::group_size;
            auto x = Isa::template widen<part, P::code.is_signed>(v);
            if constexpr (P::code.times != 1) x = Isa::mul(x, Isa::splat(static_cast<float>(P::code.times)));
            if constexpr (P::code.zero != 0) x = Isa::add(x, Isa::splat(static_cast<float>(-P::code.zero)));
            x = Isa::mul(x, Isa::splat(scale[g]));
            if constexpr (F::offset.present) x = Isa::add(x, Isa::splat(offset[g]));
            Isa::storef(out + value, x);
          }(),
          ...);
    }(std::make_integer_sequence<int, W / L>{});
  }
  // The same as a loop.
  static void values(const typename Isa::bytes& codes, int first, const float* scale, const float* offset, float* out) {
    alignas(64) uint8_t t[W];
    Isa::store(t, codes);
    for (int i = 0; i < W; ++i) {
      const int g = (first + i) / Shape<F>::group_size;
      auto x = static_cast<float>(P::code.is_signed ? static_cast<int8_t>(t[i]) : t[i]);
      x = (x * P::code.times - P::code.zero) * scale[g];
      out[first + i] = F::offset.present ? x + offset[g] : x;
    }
  }
  // 256 values.
  static void k_block(const Spot& s, float* out) {
    float scale[P::groups], offset[P::groups];
    [&]<int... g>(std::integer_sequence<int, g...>) FEWBIT_LAMBDA_INLINE {
      ((scale[g] = P::template factor<g, false>(s)), ...);
      if constexpr (F::offset.present) {
        ((offset[g] = static_cast<float>(F::offset_sign) * P::template factor<g, true>(s)), ...);
      }
    }(std::make_integer_sequence<int, P::groups>{});
    [&]<int... j>(std::integer_sequence<int, j...>) FEWBIT_LAMBDA_INLINE {
      if constexpr (Isa::registers > 0)
        (chunk<j>(s.p, scale, offset, out), ...);
      else
        (values(P::template codes<j>(s.p), j * W, scale, offset, out), ...);
    }(std::make_integer_sequence<int, P::chunks>{});
  }
};

// Row-placed formats whose groups are no whole number of 32 values: one value at a time.
template <class F>
void decode_uneven(const uint8_t* row, size_t k, const Layout& at, float* out) {
  float scale = 0, offset = 0;
  for (size_t i = 0, g = 0, left = 0; i < k; ++i, --left) {
    if (left == 0) {
      scale = read_row_factor(F::scale, at, row, g);
      if constexpr (F::offset.present) {
        offset = static_cast<float>(F::offset_sign) * read_row_factor(F::offset, at, row, g);
      }
      ++g;
      left = at.group;
    }
    const size_t block = i / kBlockK * kBlockK * static_cast<size_t>(F::codes.bits()) / 8;
    out[i] = static_cast<float>(read_int(F::codes, row + block, static_cast<int>(i % kBlockK))) * scale;
    if constexpr (F::offset.present) out[i] += offset;
  }
}

template <class F>
void decode_row(const uint8_t* row, size_t k, const Layout& at, float* out) {
  if constexpr (F::kind == Kind::scalar) {
    size_t i = 0;
    if constexpr (is_plain<F>()) {
      constexpr int vectors = F::bytes == 1 ? 32 / Isa::L : 1;
      for (; i + vectors * Isa::L <= k; i += vectors * Isa::L) {
        typename Isa::f32 x[vectors];
        read_reals<F, vectors>(row + i * F::bytes, x);
        for (int v = 0; v < vectors; ++v) Isa::storef(out + i + v * Isa::L, x[v]);
      }
    }
    for (; i < k; ++i) out[i] = read_real(F::real, row + i * F::bytes);
  } else {
    if constexpr (F::placement == Placement::row) {
      if (at.group % kGranule != 0 && at.group < k) return decode_uneven<F>(row, k, at, out);
    }
    each_k_block<F>(row, k, at, [&](size_t i, const Spot& s) {
      if (k - i * kBlockK >= kBlockK) return Decode<F>::k_block(s, out + i * kBlockK);
      alignas(64) float t[kBlockK];
      Decode<F>::k_block(s, t);
      std::memcpy(out + i * kBlockK, t, (k - i * kBlockK) * sizeof(float));
    });
  }
}
