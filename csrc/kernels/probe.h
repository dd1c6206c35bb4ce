// What the machine can do at most: reading memory, and multiplying what is in registers already.

// Reads `bytes` bytes (whole runs of 8 vectors) and returns something that depends on all of them; `prefetch`: they are
// prefetched.
template <bool prefetch>
uint64_t probe_read(const uint8_t* p, size_t bytes) {
  constexpr size_t W = Isa::W;
  typename Isa::bytes acc[8];
  for (auto& a : acc) a = Isa::load(p);
  Prefetcher<> lines(p);
  for (size_t i = 0; i + 8 * W <= bytes; i += 8 * W) {
    if constexpr (prefetch) lines.template reach<8 * W>();
    for (int j = 0; j < 8; ++j) acc[j] = Isa::either(acc[j], Isa::load(p + i + j * W));
  }
  for (int j = 1; j < 8; ++j) acc[0] = Isa::either(acc[0], acc[j]);
  uint64_t out;
  std::memcpy(&out, &acc[0], sizeof out);
  return out;
}

// Multiply-adds of 8-bit integers; returns how many there were. `sink` keeps the work alive.
inline size_t probe_int8(size_t rounds, float* sink) {
  constexpr int chains = 10;
  alignas(64) int8_t x[Isa::W];
  alignas(64) uint8_t w[Isa::W];
  for (int i = 0; i < Isa::W; ++i) {
    x[i] = static_cast<int8_t>(i * 37 % 120 - 60);
    w[i] = static_cast<uint8_t>(i * 11 % 16);
  }
  const typename Isa::bytes q = Isa::load(w);
  typename Isa::ints acc[chains];
  for (auto& a : acc) a = Isa::no_ints();
  for (size_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) a = Isa::dot_add(a, q, x);
  }
  typename Isa::f32 sum = Isa::zero();
  for (auto& a : acc) sum = Isa::add(sum, Isa::to_floats(a));
  *sink = Isa::sum(sum);
  return rounds * chains * Isa::W;
}

// Multiply-adds of floats.
inline size_t probe_f32(size_t rounds, float* sink) {
  constexpr int chains = 10;
  typename Isa::f32 acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = Isa::splat(static_cast<float>(i));
  const typename Isa::f32 a = Isa::splat(0.999f), b = Isa::splat(0.001f);
  for (size_t r = 0; r < rounds; ++r) {
    for (auto& v : acc) v = Isa::fma(v, a, b);
  }
  typename Isa::f32 sum = Isa::zero();
  for (auto& v : acc) sum = Isa::add(sum, v);
  *sink = Isa::sum(sum);
  return rounds * chains * Isa::L;
}
