// CUDA kernels as plain C++, to run them where there is no GPU: blocks one after another, each thread of a block a
// fiber that runs until it must wait for others. Warp operations exchange what their lanes hold; PTX instructions are
// the functions in ptx.h, which translate.py puts in the place of inline assembly.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) alignas(n)
#define __restrict__
#define __CUDA_ARCH__ 800

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
struct alignas(16) double2 {
  double x, y;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

constexpr size_t kStack = 256 << 10, kShared = 227 << 10, kPayload = 64;
enum class Wait { nothing, warp, block, done };

struct Fiber {
  ucontext_t context;  // where it begins
  jmp_buf place;       // where it goes on: ten times faster than contexts, which ask the kernel each time
  bool began = false;
  Wait wait = Wait::nothing;
  uint32_t mask = 0;
  alignas(16) unsigned char given[kPayload];
};
struct Warp {
  alignas(16) unsigned char taken[32][kPayload];  // what the lanes of the last operation gave
};

inline std::vector<Fiber>& fibers() {
  static std::vector<Fiber> all;
  return all;
}
inline std::vector<Warp>& warps() {
  static std::vector<Warp> all;
  return all;
}
inline jmp_buf& home() {
  static jmp_buf place;
  return place;
}
inline int& current() {
  static int thread;
  return thread;
}
alignas(128) inline unsigned char shared[kShared];  // what a launch asks for beside static memory
inline int lane() { return current() % 32; }
inline Warp& warp() { return warps()[current() / 32]; }

inline void set_thread(int thread) {
  current() = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}
inline void wait(Wait kind, uint32_t mask) {
  const int own = current();
  Fiber& fiber = fibers()[own];
  fiber.wait = kind, fiber.mask = mask;
  if (!_setjmp(fiber.place)) _longjmp(home(), 1);
}

// Gives a value to the other lanes of the mask and waits for theirs: `of<T>(lane)` reads them.
template <class T>
inline void exchange(uint32_t mask, const T& value) {
  static_assert(sizeof(T) <= kPayload);
  if (!(mask >> lane() & 1)) std::fprintf(stderr, "emulator: a lane that is not in its mask\n"), std::abort();
  std::memcpy(fibers()[current()].given, &value, sizeof(T));
  wait(Wait::warp, mask);
}
template <class T>
inline T of(int lane) {
  T value;
  std::memcpy(&value, warp().taken[lane & 31], sizeof(T));
  return value;
}

inline void (*&body())(void*) {
  static void (*f)(void*);
  return f;
}
inline void*& body_data() {
  static void* p;
  return p;
}
inline void (*&at_end())() {  // what each thread does at its end
  static void (*f)();
  return f;
}
inline void fiber_main() {
  body()(body_data());
  if (at_end()) at_end()();
  fibers()[current()].wait = Wait::done;
  _longjmp(home(), 1);
}
inline void resume(int thread) {
  Fiber& fiber = fibers()[thread];
  set_thread(thread);
  if (_setjmp(home())) return;
  if (fiber.began) _longjmp(fiber.place, 1);
  fiber.began = true;
  setcontext(&fiber.context);
}

// Lanes that all wait with the same mask go on. Whether some did.
inline bool release_warp(int first, int last) {
  for (int i = first; i < last; ++i) {
    Fiber& fiber = fibers()[i];
    if (fiber.wait != Wait::warp) continue;
    bool ready = true;
    for (int j = first; j < last; ++j) {
      const Fiber& other = fibers()[j];
      if (!(fiber.mask >> (j - first) & 1) || other.wait == Wait::done) continue;
      ready = ready && other.wait == Wait::warp && other.mask == fiber.mask;
    }
    if (!ready) continue;
    const uint32_t mask = fiber.mask;
    for (int j = first; j < last; ++j)
      if (mask >> (j - first) & 1 && fibers()[j].wait == Wait::warp) {
        std::memcpy(warps()[first / 32].taken[j - first], fibers()[j].given, kPayload);
        fibers()[j].wait = Wait::nothing;
      }
    return true;
  }
  return false;
}

inline void run_block(int threads) {
  static std::vector<unsigned char> stacks;
  if (stacks.size() < kStack * threads) stacks.resize(kStack * threads);
  fibers().assign(threads, Fiber());
  warps().resize((threads + 31) / 32);
  for (int i = 0; i < threads; ++i) {
    ucontext_t& c = fibers()[i].context;
    getcontext(&c);
    c.uc_stack.ss_sp = stacks.data() + kStack * i;
    c.uc_stack.ss_size = kStack;
    c.uc_link = nullptr;
    makecontext(&c, fiber_main, 0);
  }
  for (;;) {
    bool moved = false;
    for (int first = 0; first < threads; first += 32) {
      const int last = first + 32 < threads ? first + 32 : threads;
      do {
        for (int i = first; i < last; ++i)
          if (fibers()[i].wait == Wait::nothing) {
            resume(i);
            moved = true;
          }
      } while (release_warp(first, last));
    }
    int done = 0, at_barrier = 0;
    for (int i = 0; i < threads; ++i)
      done += fibers()[i].wait == Wait::done, at_barrier += fibers()[i].wait == Wait::block;
    if (done == threads) return;
    if (done + at_barrier == threads) {
      for (Fiber& fiber : fibers())
        if (fiber.wait == Wait::block) fiber.wait = Wait::nothing;
    } else if (!moved) {
      std::fprintf(stderr, "emulator: threads wait for each other forever\n"), std::abort();
    }
  }
}

template <class F, class... A, size_t... I>
inline void call(F f, void** args, std::tuple<A...>*, std::index_sequence<I...>) {
  f(*static_cast<A*>(args[I])...);
}
template <class... A>
struct Call {
  void (*f)(A...);
  void** args;
  static void run(void* p) {
    Call* self = static_cast<Call*>(p);
    call(self->f, self->args, static_cast<std::tuple<A...>*>(nullptr), std::index_sequence_for<A...>());
  }
};

// As cuLaunchKernel: grid, threads of a block, pointers to the arguments.
template <class... A>
inline void launch(void (*f)(A...), const unsigned* grid, unsigned threads, void** args) {
  Call<A...> one{f, args};
  body() = &Call<A...>::run, body_data() = &one;
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {threads, 1, 1};
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        std::memset(shared, 0xFF, sizeof(shared) < 4096 ? sizeof(shared) : 4096);
        run_block(static_cast<int>(threads));
      }
}

}  // namespace emu
