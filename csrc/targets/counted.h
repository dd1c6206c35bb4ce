// Kernels that count their calls. Included inside the namespace of an instruction set.

inline std::atomic<uint64_t> product_count{0};  // how often this instruction set really multiplied; for tests

template <auto kernel>
struct Counted;
template <class... Args, void (*kernel)(Args...)>
struct Counted<kernel> {
  static void call(Args... args) {
    product_count.fetch_add(1, std::memory_order_relaxed);
    kernel(args...);
  }
};
