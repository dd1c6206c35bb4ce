// The table of functions of the instruction set whose namespace this is included in.

inline std::atomic<uint64_t> products{0};  // how often this instruction set really multiplied; for tests

template <class F>
void counted_dot(const uint8_t* w, size_t rows, size_t k, const Layout& at, const Activation* x, size_t columns,
                 float* y, size_t y_stride) {
  products.fetch_add(1, std::memory_order_relaxed);
  dot_rows<F>(w, rows, k, at, x, columns, y, y_stride);
}

template <class F>
void counted_exact(const uint8_t* w, size_t rows, size_t k, const Layout& at, const float* x, size_t columns, float* y,
                   size_t y_stride, float* scratch) {
  products.fetch_add(1, std::memory_order_relaxed);
  exact_rows<F>(w, rows, k, at, x, columns, y, y_stride, scratch);
}

template <class F>
constexpr const char* path() {
  if constexpr (F::kind == Kind::scalar)
    return "f32";
  else
    return Span<F>::unpacked ? "unpacked" : "planes";
}

template <class F>
Kernels make_kernels() {
  Kernels out{F::name, path<F>(), layout<F>, decode_row<F>, nullptr, nullptr, counted_exact<F>};
  if constexpr (F::kind != Kind::scalar) out.dot = counted_dot<F>;
  return out;
}

extern const Encode encoders[];  // targets/encoders.h

inline const Kernels* kernels() {
#define FEWBIT_KERNELS(F) make_kernels<formats::F>(),
  static const auto all = [] {
    std::array out = {FEWBIT_FORMATS(FEWBIT_KERNELS)};
    for (size_t i = 0; i < out.size(); ++i) out[i].encode = encoders[i];
    return out;
  }();
#undef FEWBIT_KERNELS
  return all.data();
}

constexpr Probes probes = {probe_read<0>, probe_read<kPrefetchBytes>, probe_int8, probe_f32};
