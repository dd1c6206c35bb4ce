// The table of functions of the instruction set whose namespace this is included in.

inline std::atomic<uint64_t> products{0};  // how often this instruction set really multiplied; for tests

// A kernel that counts its calls.
template <auto kernel>
struct Counted;
template <class... Args, void (*kernel)(Args...)>
struct Counted<kernel> {
  static void call(Args... args) {
    products.fetch_add(1, std::memory_order_relaxed);
    kernel(args...);
  }
};

template <class F>
constexpr const char* path() {
  if constexpr (F::kind == Kind::scalar)
    return "f32";
  else
    return Span<F>::unpacked ? "unpacked" : "planes";
}

template <class F>
Kernels make_kernels() {
  Kernels out{};
  out.format = F::name;
  out.path = path<F>();
  out.layout = layout<F>;
  out.decode = decode_row<F>;
  out.exact = Counted<exact_rows<F>>::call;
  if constexpr (F::kind != Kind::scalar) {
    out.sub = Shape<F>::sub;
    out.dot = Counted<dot_rows<F>>::call;
    out.lanes = Counted<lane_rows<F>>::call;
    out.lane_scratch = lane_scratch<F>;
  }
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

constexpr Probes probes = {probe_read<false>, probe_read<true>, probe_int8, probe_f32, nullptr};
