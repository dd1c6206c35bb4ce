// The table of functions of the instruction set whose namespace this is included in, after its `encoders`.

#include "targets/products.h"

template <class F>
Kernels make_kernels() {
  Kernels out{};
  out.format = F::name;
  out.layout = layout<F>;
  out.decode = decode_row<F>;
  out.exact = Counted<exact_rows<F>>::call;
#if !defined(FEWBIT_WITHOUT_PRODUCTS)  // a target on top of this one has its own, see native.cmake
  set_products<F>(out);
#endif
  if constexpr (KvBlock<F>::can()) out.kv = {kv_scores<F>, kv_values<F>, kv_floats<F>};
  add_integer_kv<F>(out.kv);
  if constexpr (KvTiled<F>::can()) {
    out.kv.to_tiled = to_tiled<F>;
    out.kv.from_tiled = from_tiled<F>;
  }
  out.kv_block = F::kind == Kind::scalar ? 1 : 32;
  return out;
}

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
