// The launches of a step on a GPU, by one call. Nothing links against CUDA: cuLaunchKernelEx of the driver and
// cublasGemmEx are addresses, and tests pass functions of their own.
#include <cstring>

#include "bindings.h"

namespace fewbit {
namespace {

// As LAUNCH in src/fewbit/ops/cuda/launch.py.
struct Launch {
  uint64_t kernel;  // 0: a matrix product, whose parameters are a Gemm
  uint32_t grid[3], threads, shared_bytes, is_dependent;
  uint32_t first, bytes;  // of the parameters in the arena
};
static_assert(sizeof(Launch) == 40);

// As GEMM there: y (m, n) in f32 = x (m, k) w (n, k)^T + beta y.
struct Gemm {
  uint64_t x, w, y;
  int32_t m, n, k, type, x_stride, y_stride;
  float beta;
  uint32_t padding;
};
static_assert(sizeof(Gemm) == 56);

// CUlaunchAttribute and CUlaunchConfig of cuda.h.
struct LaunchAttribute {
  int id;
  alignas(8) union {
    int allowed;
    char bytes[64];
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

using LaunchKernel = int (*)(const LaunchConfig*, void* kernel, void** parameters, void** extra);
using GemmEx = int (*)(void* handle, int, int, int, int, int, const void* alpha, const void* a, int, int, const void* b,
                       int, int, const void* beta, void* c, int, int, int, int);

template <class T>
T from_address(uint64_t address) {
  return reinterpret_cast<T>(static_cast<uintptr_t>(address));
}

// Launched before the kernel in front of it has ended (programmatic stream serialization).
const LaunchAttribute kDependent = {6, {1}};

int launch_kernel(LaunchKernel function, void* stream, const Launch& launch, const uint8_t* parameters) {
  LaunchConfig config = {{launch.grid[0], launch.grid[1], launch.grid[2]},
                         {launch.threads, 1, 1},
                         launch.shared_bytes,
                         stream,
                         nullptr,
                         0};
  if (launch.is_dependent) config.attributes = &kDependent, config.num_attributes = 1;
  size_t size = launch.bytes;
  // CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END
  void* extra[] = {from_address<void*>(1), const_cast<uint8_t*>(parameters), from_address<void*>(2), &size, nullptr};
  return function(&config, from_address<void*>(launch.kernel), nullptr, extra);
}

int launch_gemm(GemmEx function, void* handle, const uint8_t* parameters) {
  constexpr int transposed = 1, normal = 0, f32 = 0, compute_f32 = 68, default_algorithm = -1;
  Gemm g;
  std::memcpy(&g, parameters, sizeof(g));
  const float one = 1;
  return function(handle, transposed, normal, g.n, g.m, g.k, &one, from_address<void*>(g.w), g.type, g.k,
                  from_address<void*>(g.x), g.type, g.x_stride, &g.beta, from_address<void*>(g.y), f32, g.y_stride,
                  compute_f32, default_algorithm);
}

void expect_launch(const Launch& launch, size_t arena_bytes, uint64_t kernel_address, uint64_t gemm_address) {
  expect(launch.first <= arena_bytes && launch.bytes <= arena_bytes - launch.first, "end of a launch's parameters",
         size_t{launch.first} + launch.bytes, arena_bytes);
  if (launch.kernel == 0) {
    expect(launch.bytes == sizeof(Gemm), "bytes of a product", launch.bytes, sizeof(Gemm));
    if (gemm_address == 0) throw std::invalid_argument("a list with products needs the address of cublasGemmEx");
    return;
  }
  if (kernel_address == 0) throw std::invalid_argument("a list with kernels needs the address of cuLaunchKernelEx");
  for (const uint32_t size : {launch.grid[0], launch.grid[1], launch.grid[2], launch.threads})
    if (size == 0) throw std::invalid_argument("a launch has no blocks or no threads");
}

// Launches number `begin` to `end`. Returns the first that failed, with its status, or {-1, 0}.
std::pair<int64_t, int> py_launch_all(uint64_t kernel_address, uint64_t gemm_address, uint64_t blas_handle,
                                      uint64_t stream, Bytes launches, Bytes arena, size_t begin, size_t end) {
  const size_t count = launches.size() / sizeof(Launch);
  expect(launches.size() % sizeof(Launch) == 0, "bytes of launches", launches.size(), count * sizeof(Launch));
  expect(begin <= end && end <= count, "end of the launches", end, count);
  const auto at = [&](size_t i) {
    Launch launch;
    std::memcpy(&launch, launches.data() + i * sizeof(Launch), sizeof(Launch));
    return launch;
  };
  for (size_t i = begin; i < end; ++i) expect_launch(at(i), arena.size(), kernel_address, gemm_address);
  const WithoutGil without_gil;
  for (size_t i = begin; i < end; ++i) {
    const Launch launch = at(i);
    const uint8_t* parameters = arena.data() + launch.first;
    const int status = launch.kernel == 0 ? launch_gemm(from_address<GemmEx>(gemm_address),
                                                        from_address<void*>(blas_handle), parameters)
                                          : launch_kernel(from_address<LaunchKernel>(kernel_address),
                                                          from_address<void*>(stream), launch, parameters);
    if (status != 0) return {static_cast<int64_t>(i), status};
  }
  return {-1, 0};
}

}  // namespace

void bind_launches(nb::module_& m) {
  m.def("launch_all", py_launch_all, nb::arg("kernel_address"), nb::arg("gemm_address"), nb::arg("blas_handle"),
        nb::arg("stream"), nb::arg("launches"), nb::arg("arena"), nb::arg("begin"), nb::arg("end"),
        "Launch kernels and matrix products of a GPU; which one failed, and its status, or (-1, 0).");
}

}  // namespace fewbit
