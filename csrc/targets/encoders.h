// The encoders of the instruction set whose namespace this is included in: files of their own, since they take as long
// to build as all other kernels together.

template <class F>
constexpr Encode encoder() {
  if constexpr (F::rule == Rule::none)
    return nullptr;
  else
    return encode_row<F>;
}

extern const Encode encoders[];
#define FEWBIT_ENCODER(F) encoder<formats::F>(),
const Encode encoders[] = {FEWBIT_FORMATS(FEWBIT_ENCODER)};
#undef FEWBIT_ENCODER
