// Random numbers that are the same on every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fewbit::selftest {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // 0 <= x < 1
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  float normal() {  // near enough
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  template <class T, size_t n>
  const T& one_of(const T (&list)[n]) {
    return list[below(n)];
  }

 private:
  uint64_t state_;
};

inline uint64_t hash_of(std::string_view text, uint64_t seed) {
  for (const char c : text) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return Random(seed).next();
}

}  // namespace fewbit::selftest
