// When two results count as the same.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

namespace fewbit::selftest {

// The same bits; one NaN is as good as another.
inline bool same_floats(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

template <class T>
bool same_bytes(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// The larger of two errors, or NaN if one is: it is below no limit.
inline double worse(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

inline double sum_of(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}
inline double magnitude(std::span<const float> a) {
  double sum = 0;
  for (const float v : a) sum += std::fabs(static_cast<double>(v));
  return sum;
}
inline double largest(std::span<const float> a) {
  double top = 0;
  for (const float v : a) top = worse(top, std::fabs(static_cast<double>(v)));
  return top;
}

}  // namespace fewbit::selftest
