// Products of warpgroups, as the PTX manual defines them ("Asynchronous Warpgroup Level Matrix Instructions"). What is
// undefined there ends the program:
//
// - a product is made when it is waited for, not before; its matrix B must not have changed since it was issued
// - what threads copied to shared memory must be fenced for the asynchronous proxy before products read it
// - registers are fenced before each group of products, and groups are waited for before the kernel ends
// - all warps of a warpgroup issue products with the same descriptors
//
// Descriptors without swizzling of matrices that lie along k are decoded, no others.
#pragma once
#include <array>
#include <deque>

namespace ptx {

[[noreturn]] inline void undefined(const char* what) {
  std::fprintf(stderr, "emulator: wgmma: %s\n", what), std::abort();
}

struct Product {
  std::vector<float*> d;
  Fragments a;
  uint64_t descriptor;
  float (*decode)(uint32_t);
  std::vector<uint32_t> b;  // as it was, in the first lane
};
struct WarpgroupThread {
  std::vector<Product> issued;
  std::deque<std::vector<Product>> groups;
  bool is_fenced = false;
  size_t count = 0;  // of products so far
};
inline std::array<WarpgroupThread, 1024> warpgroup_threads;
inline std::array<std::vector<uint64_t>, 8> warpgroup_descriptors;  // of all products of a block so far
inline WarpgroupThread& warpgroup_thread() { return warpgroup_threads[emu::current()]; }

// Pieces of 16 bytes that a thread wrote and did not fence: the thread's number + 1.
inline std::vector<int>& unfenced() {
  static std::vector<int> writers(emu::kShared / 16);
  return writers;
}
inline void note_write(uint64_t address) {
  const auto at = static_cast<uint32_t>(address) / 16;
  if (at < unfenced().size()) unfenced()[at] = emu::current() + 1;
}
inline void fence_proxy_async_shared__cta() {
  for (int& writer : unfenced())
    if (writer == emu::current() + 1) writer = 0;
}

// Where 16 bytes along k of a token are: core matrices of 8 tokens by 16 bytes.
inline uint32_t core_row(uint64_t descriptor, int token, int along_k) {
  if (descriptor >> 46) undefined("a descriptor with swizzling or a base offset, which the emulator does not decode");
  const auto field = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4; };
  return field(0) + along_k * field(16) + token / 8 * field(32) + token % 8 * 16;
}
inline std::vector<uint32_t> read_b(uint64_t descriptor, int tokens) {  // [token][word along k]
  std::vector<uint32_t> b(tokens * 8);
  for (int i = 0; i < tokens * 2; ++i) {
    const uint32_t at = core_row(descriptor, i / 2, i % 2);
    if (at + 16 > emu::kShared) undefined("a matrix outside shared memory");
    if (unfenced()[at / 16]) undefined("a matrix that was written and not fenced for the asynchronous proxy");
    std::memcpy(&b[i * 4], emu::shared_at(at), 16);
  }
  return b;
}

inline void wgmma_fence_sync_aligned() { warpgroup_thread().is_fenced = true; }
inline void wgmma_commit_group_sync_aligned() {
  WarpgroupThread& own = warpgroup_thread();
  own.groups.push_back(std::move(own.issued));
  own.issued.clear(), own.is_fenced = false;
}

// Row l / 4 and 8 more of a warp, tokens 8 j + l % 4 * 2 and the next: lane l's share of the sums.
inline void finish(const Product& one) {
  const int lane = emu::lane(), tokens = static_cast<int>(one.d.size()) * 2;
  const std::vector<uint32_t> b = read_b(one.descriptor, tokens);
  if (lane == 0 && b != one.b) undefined("a matrix that changed before its product had ended");
  emu::exchange(~0u, one.a);
  float rows[2][16];
  for (int k = 0; k < 16; ++k) {
    const Fragments from = emu::of<Fragments>(lane / 4 * 4 + k % 8 / 2);
    for (int r = 0; r < 2; ++r) rows[r][k] = one.decode(from.a[r + k / 8 * 2] >> 16 * (k % 2) & 0xFFFF);
  }
  for (int t = 0; t < tokens / 8 * 2; ++t) {
    const int token = t / 2 * 8 + lane % 4 * 2 + t % 2;
    double sums[2] = {};
    for (int k = 0; k < 16; ++k) {
      const double v = one.decode(b[token * 8 + k / 2] >> 16 * (k % 2) & 0xFFFF);
      for (int r = 0; r < 2; ++r) sums[r] += rows[r][k] * v;
    }
    for (int r = 0; r < 2; ++r) *one.d[t / 2 * 4 + r * 2 + t % 2] += static_cast<float>(sums[r]);
  }
}
inline void wgmma_wait_group_sync_aligned(size_t most) {
  auto& groups = warpgroup_thread().groups;
  for (; groups.size() > most; groups.pop_front())
    for (const Product& one : groups.front()) finish(one);
}

inline void end_of_warpgroup_thread() {
  static unsigned ended;
  WarpgroupThread& own = warpgroup_thread();
  if (!own.issued.empty() || !own.groups.empty()) undefined("products that nobody waited for");
  own = {};
  if (++ended < blockDim.x) return;
  ended = 0;
  for (auto& descriptors : warpgroup_descriptors) descriptors.clear();
}
inline const bool watches_ends = (emu::at_end() = end_of_warpgroup_thread, true);

template <int N, class... P, size_t... I>
inline void issue(float (*decode)(uint32_t), std::tuple<P...> given, std::index_sequence<I...>) {
  WarpgroupThread& own = warpgroup_thread();
  constexpr int A = N / 2;
  const uint32_t a[4] = {std::get<A>(given), std::get<A + 1>(given), std::get<A + 2>(given), std::get<A + 3>(given)};
  const uint64_t b = std::get<A + 4>(given);
  const int d = std::get<A + 5>(given), scale_a = std::get<A + 6>(given), scale_b = std::get<A + 7>(given);
  const int transposed = std::get<A + 8>(given);
  if (!own.is_fenced) undefined("registers were not fenced before a group");
  if (blockDim.x % 128) undefined("a block that is no whole number of warpgroups");
  if (d != 1 || scale_a != 1 || scale_b != 1 || transposed != 0) undefined("operands that the emulator does not know");
  auto& descriptors = warpgroup_descriptors[emu::current() / 128];
  if (own.count == descriptors.size()) descriptors.push_back(b);
  if (descriptors[own.count++] != b) undefined("descriptors that differ within a warpgroup");
  own.issued.push_back({{&std::get<I>(given)...}, {{a[0], a[1], a[2], a[3]}, {}}, b, decode, {}});
  if (emu::lane() == 0) own.issued.back().b = read_b(b, N);
}
#define PTX_WGMMA(n, type, decode)                                                                      \
  template <class... P>                                                                                 \
  inline void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_##type##_##type(P&&... given) {             \
    issue<n>(decode, std::tuple<P&&...>(std::forward<P>(given)...), std::make_index_sequence<n / 2>()); \
  }
PTX_WGMMA(48, f16, to_float)
PTX_WGMMA(64, f16, to_float)
PTX_WGMMA(96, f16, to_float)
PTX_WGMMA(128, f16, to_float)

}  // namespace ptx
