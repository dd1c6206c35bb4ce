// The kernels of the KV cache for each format. Included inside the namespace of an instruction set after `set_kv<F>`.

static void add_kv(Kernels* by_format) {
#if defined(FEWBIT_BASE)
  FEWBIT_BASE::kv.add(by_format);
#endif
#define FEWBIT_ADD(F) set_kv<formats::F>(by_format++->kv);
  FEWBIT_FORMATS(FEWBIT_ADD)
#undef FEWBIT_ADD
}
