// The table of the instruction set `base`, with what `change<F>` changes. Included after both inside a namespace.

inline const Kernels* kernels() {
#define FEWBIT_CHANGE(F) change<formats::F>(out[i++]);
#define FEWBIT_COUNT(F) +1
  static const auto all = [] {
    std::array<Kernels, 0 FEWBIT_FORMATS(FEWBIT_COUNT)> out;
    std::copy_n(base.kernels(), out.size(), out.begin());
    size_t i = 0;
    FEWBIT_FORMATS(FEWBIT_CHANGE)
    return out;
  }();
#undef FEWBIT_COUNT
#undef FEWBIT_CHANGE
  return all.data();
}
