#include "linear.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "threads.h"

namespace fewbit {
namespace {

// Memory that grows and is kept, one for each thread and use.
template <class T>
class Workspace {
 public:
  ~Workspace() { std::free(data_); }
  T* get(size_t count) {
    if (count > capacity_) {
      const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
      void* fresh = std::aligned_alloc(64, bytes);
      if (!fresh) throw std::bad_alloc();
      std::free(data_);
      data_ = static_cast<T*>(fresh);
      capacity_ = count;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

thread_local Workspace<Activation> activations;
thread_local Workspace<float> decoded_rows, decoded_activations;

// Rows a piece: small enough to share evenly, large enough to be worth a turn.
size_t grain(size_t n, size_t row_bytes, int threads) {
  const size_t even = n / (static_cast<size_t>(std::max(threads, 1)) * 32);
  const size_t worth = 16384 / std::max<size_t>(row_bytes, 1) + 1;
  return std::clamp<size_t>(even, std::min<size_t>(worth, 64), 256);
}

}  // namespace

size_t activation_count(size_t m, size_t k) { return m * ((k + kSpan - 1) / kSpan); }

void quantize_activations(const float* x, size_t m, size_t k, Activation* out, int threads) {
  const Target& target = current_target();
  const size_t spans = (k + kSpan - 1) / kSpan;
  parallel_for(m, 8, threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) target.quantize_row(x + r * k, k, out + r * spans);
  });
}

void decode_activations(const Activation* x, size_t m, size_t k, float* out) {
  const size_t spans = (k + kSpan - 1) / kSpan;
  for (size_t r = 0; r < m; ++r) {
    for (size_t i = 0; i < k; ++i) {
      const Activation& a = x[r * spans + i / kSpan];
      out[r * k + i] = static_cast<float>(a.q[i % kSpan]) * a.d32[i % kSpan / 32];
    }
  }
}

void decode(const Matrix& w, float* out, int threads) {
  parallel_for(w.n, grain(w.n, w.at.row_bytes, threads), threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) w.kernels->decode(w.data + r * w.at.row_bytes, w.k, w.at, out + r * w.k);
  });
}

void encode(const Kernels& kernels, const Layout& at, const float* x, size_t n, size_t k, const float* importance,
            uint8_t* out, int threads) {
  parallel_for(n, grain(n, at.row_bytes, threads), threads, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) kernels.encode(x + r * k, k, importance, at, out + r * at.row_bytes);
  });
}

void linear_exact(const Matrix& w, const float* x, size_t m, float* out, int threads) {
  parallel_for(w.n, grain(w.n, w.at.row_bytes, threads), threads, [&](size_t begin, size_t end) {
    w.kernels->exact(w.data + begin * w.at.row_bytes, end - begin, w.k, w.at, x, m, out + begin, w.n,
                     decoded_rows.get(w.k));
  });
}

void linear_quantized(const Matrix& w, const Activation* x, size_t m, float* out, int threads) {
  if (!has_dot(*w.kernels, w.at, w.k)) {  // the same activations, by the long way
    float* decoded = decoded_activations.get(m * w.k);
    decode_activations(x, m, w.k, decoded);
    return linear_exact(w, decoded, m, out, threads);
  }
  parallel_for(w.n, grain(w.n, w.at.row_bytes, threads), threads, [&](size_t begin, size_t end) {
    w.kernels->dot(w.data + begin * w.at.row_bytes, end - begin, w.k, w.at, x, m, out + begin, w.n);
  });
}

void linear(const Matrix& w, const float* x, size_t m, float* out, int threads) {
  Activation* a = activations.get(activation_count(m, w.k));
  quantize_activations(x, m, w.k, a, threads);
  linear_quantized(w, a, m, out, threads);
}

}  // namespace fewbit
