// Measures what the machine can do at most, beside which kernels are judged.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace fewbit {

// Seconds to read the bytes once, each thread its own part.
double probe_read(const uint8_t* data, size_t bytes, int threads, bool prefetch);

// Multiply-adds a second of all threads together; kind is "int8" or "f32".
double probe_rate(const std::string& kind, double seconds, int threads);

}  // namespace fewbit
