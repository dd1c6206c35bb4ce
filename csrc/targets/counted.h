// Kernels that count their calls. Included inside the namespace of an instruction set.

inline std::atomic<uint64_t> products{0};  // how often this instruction set really multiplied; for tests

// A kernel that counts its calls.
template <auto kernel>
struct Counted;
template <class... Args, void (*kernel)(Args...)>
struct Counted<kernel> {
  static void call(Args... args) {
    products.fetch_add(1, std::memory_order_relaxed);
    kernel(args...);
  }
};
