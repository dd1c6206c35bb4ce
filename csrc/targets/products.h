// The table of products. Included inside the namespace of an instruction set after its kernels and `set_products<F>`.
//
// Products take most of the time of a build, so a file compiles every FEWBIT_PARTS-th format; the first has the rest.

template <size_t part>
void add_products(Kernels* by_format);

template <class F, size_t number>
void add_in_part(Kernels* by_format) {
  if constexpr (number % FEWBIT_PARTS == FEWBIT_PART) set_products<F>(by_format[number]);
}

template <>
void add_products<FEWBIT_PART>(Kernels* by_format) {
#define FEWBIT_ADD(F) add_in_part<formats::F, number_of::F>(by_format);
  FEWBIT_FORMATS(FEWBIT_ADD)
#undef FEWBIT_ADD
}

#if FEWBIT_PART == 0
static void add_all_products(Kernels* by_format) {
#if defined(FEWBIT_BASE)
  FEWBIT_BASE::products.add(by_format);
#endif
  [&]<size_t... part>(std::index_sequence<part...>) {
    (add_products<part>(by_format), ...);
  }(std::make_index_sequence<FEWBIT_PARTS>{});
}

bool available();
bool available() { return has_isa(); }
#endif
