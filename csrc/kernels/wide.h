// Sixteen floats side by side, in the compiler's own vectors: as many registers as the instruction set needs. Every
// operation is an IEEE one, so that results are the same everywhere.

constexpr int kWideLanes = 16;
constexpr int kRegister = alignof(Isa::f32) / sizeof(float);  // floats; where Isa has no registers, SSE and NEON have 4
constexpr int kPart = kRegister < 4 ? 4 : kRegister < kWideLanes ? kRegister : kWideLanes, kParts = kWideLanes / kPart;

struct Wide {
  typedef float Floats __attribute__((vector_size(4 * kPart)));
  typedef int32_t Wholes __attribute__((vector_size(4 * kPart)));
  Floats part[kParts];
};

// All bits set where something holds, or 16 integers.
struct Wholes {
  Wide::Wholes part[kParts];
};

#define FEWBIT_WIDE(Out, name, A, B, expression)                 \
  static FEWBIT_INLINE Out name(const A& a, const B& b) {        \
    Out out;                                                     \
    for (int p = 0; p < kParts; ++p) out.part[p] = (expression); \
    return out;                                                  \
  }
FEWBIT_WIDE(Wide, operator+, Wide, Wide, a.part[p] + b.part[p])
FEWBIT_WIDE(Wide, operator-, Wide, Wide, a.part[p] - b.part[p])
FEWBIT_WIDE(Wide, operator*, Wide, Wide, a.part[p] * b.part[p])
FEWBIT_WIDE(Wide, operator/, Wide, Wide, a.part[p] / b.part[p])
FEWBIT_WIDE(Wholes, operator>, Wide, Wide, a.part[p] > b.part[p])
FEWBIT_WIDE(Wholes, operator>=, Wide, Wide, a.part[p] >= b.part[p])
FEWBIT_WIDE(Wholes, operator<, Wide, Wide, a.part[p] < b.part[p])
FEWBIT_WIDE(Wholes, operator==, Wide, Wide, a.part[p] == b.part[p])
FEWBIT_WIDE(Wholes, operator&, Wholes, Wholes, a.part[p] & b.part[p])
FEWBIT_WIDE(Wholes, operator|, Wholes, Wholes, a.part[p] | b.part[p])
FEWBIT_WIDE(Wholes, operator+, Wholes, Wholes, a.part[p] + b.part[p])
FEWBIT_WIDE(Wholes, most, Wholes, Wholes, a.part[p] > b.part[p] ? a.part[p] : b.part[p])
FEWBIT_WIDE(Wholes, least, Wholes, Wholes, a.part[p] < b.part[p] ? a.part[p] : b.part[p])
FEWBIT_WIDE(Wide, most, Wide, Wide, a.part[p] > b.part[p] ? a.part[p] : b.part[p])
FEWBIT_WIDE(Wide, least, Wide, Wide, a.part[p] < b.part[p] ? a.part[p] : b.part[p])
#undef FEWBIT_WIDE

static FEWBIT_INLINE Wide select(const Wholes& where, const Wide& a, const Wide& b) {
  Wide out;
  for (int p = 0; p < kParts; ++p) out.part[p] = where.part[p] ? a.part[p] : b.part[p];
  return out;
}
static FEWBIT_INLINE Wide splat(float v) {
  Wide out;
  for (int p = 0; p < kParts; ++p) out.part[p] = v - Wide::Floats{};
  return out;
}
static FEWBIT_INLINE Wholes splat_bits(int32_t v) {
  Wholes out;
  for (int p = 0; p < kParts; ++p) out.part[p] = v - Wide::Wholes{};
  return out;
}
static FEWBIT_INLINE Wide load_wide(const float* v) {
  Wide out;
  std::memcpy(&out, v, sizeof out);
  return out;
}
static FEWBIT_INLINE Wide load_bytes(const int8_t* v) {
  typedef int8_t Bytes __attribute__((vector_size(kPart)));
  typedef int16_t Words __attribute__((vector_size(2 * kPart)));
  Wide out;
  for (int p = 0; p < kParts; ++p) {
    Bytes bytes;
    std::memcpy(&bytes, v + p * kPart, sizeof bytes);
    const Words words = __builtin_convertvector(bytes, Words);  // in steps, which compilers have instructions for
    out.part[p] = __builtin_convertvector(__builtin_convertvector(words, Wide::Wholes), Wide::Floats);
  }
  return out;
}
static FEWBIT_INLINE void store_wide(float* out, const Wide& v) { std::memcpy(out, &v, sizeof v); }
static FEWBIT_INLINE Wholes bits_of(const Wide& v) {
  Wholes out;
  std::memcpy(&out, &v, sizeof v);
  return out;
}
static FEWBIT_INLINE Wide from_bits(const Wholes& v) {
  Wide out;
  std::memcpy(&out, &v, sizeof v);
  return out;
}
static FEWBIT_INLINE Wide magnitude(const Wide& v) { return from_bits(bits_of(v) & splat_bits(0x7fffffff)); }
static FEWBIT_INLINE Wholes truncated(const Wide& v) {
  Wholes out;
  for (int p = 0; p < kParts; ++p) out.part[p] = __builtin_convertvector(v.part[p], Wide::Wholes);
  return out;
}

// The first lane of those with the least value.
static FEWBIT_INLINE int least_lane(const Wide& v) {
  float lanes[kWideLanes];
  store_wide(lanes, v);
  int at = 0;
  for (int l = 1; l < kWideLanes; ++l) at = lanes[l] < lanes[at] ? l : at;
  return at;
}
// The same without a chain of sixteen comparisons, for lanes that hold no NaN.
static FEWBIT_INLINE int least_lane_of_numbers(const Wide& v) {
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t FourWholes __attribute__((vector_size(16)));
  Four part[4];
  std::memcpy(part, &v, sizeof part);
  const Four a = part[0] < part[1] ? part[0] : part[1], b = part[2] < part[3] ? part[2] : part[3];
  const Four least = a < b ? a : b;
  const float c = least[0] < least[1] ? least[0] : least[1], d = least[2] < least[3] ? least[2] : least[3];
  const Four all = (c < d ? c : d) - Four{};
  FourWholes at = FourWholes{} + kWideLanes;
  for (int p = 3; p >= 0; --p) at = part[p] == all ? FourWholes{0, 1, 2, 3} + 4 * p : at;
  const int e = at[0] < at[1] ? at[0] : at[1], f = at[2] < at[3] ? at[2] : at[3];
  return e < f ? e : f;
}
static FEWBIT_INLINE float lane_of(const Wide& v, int lane) {
  float lanes[kWideLanes];
  store_wide(lanes, v);
  return lanes[lane];
}
