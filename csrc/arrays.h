// NumPy arrays as arguments. What an array holds is read from NumPy's own struct: a call takes up to ten of them, and
// the ways that work with any library (buffers, DLPack) take a fifth of a microsecond for each.
#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <type_traits>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL fewbit_numpy
#ifndef FEWBIT_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

namespace fewbit {

namespace nb = nanobind;

// Numbers of one type in N dimensions, one after the other; const: they may be read-only.
template <class T, size_t N>
class Array {
 public:
  Array() = default;
  Array(T* data, const std::array<size_t, N>& shape, const nb::object& owner)
      : data_(data), shape_(shape), owner_(owner) {}

  T* data() const { return data_; }
  size_t shape(size_t i) const { return shape_[i]; }
  size_t size() const {
    size_t out = 1;
    for (const size_t n : shape_) out *= n;
    return out;
  }
  size_t nbytes() const { return size() * sizeof(T); }
  const nb::object& owner() const { return owner_; }

  operator Array<const T, N>() const  // what may be written may be read
    requires(!std::is_const_v<T>)
  {
    return {data_, shape_, owner_};
  }

  bool take(nb::handle from) noexcept {
    if (!PyArray_Check(from.ptr())) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(from.ptr());
    constexpr int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (std::is_const_v<T> ? 0 : NPY_ARRAY_WRITEABLE);
    constexpr char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    if (PyArray_NDIM(array) != static_cast<int>(N) || !PyArray_CHKFLAGS(array, flags)) return false;
    if (PyArray_DESCR(array)->kind != kind || PyArray_ITEMSIZE(array) != sizeof(T)) return false;
    if (!PyArray_ISNOTSWAPPED(array)) return false;
    for (size_t i = 0; i < N; ++i) shape_[i] = static_cast<size_t>(PyArray_DIM(array, static_cast<int>(i)));
    data_ = static_cast<T*>(PyArray_DATA(array));
    owner_ = nb::borrow(from);
    return true;
  }

 private:
  T* data_ = nullptr;
  std::array<size_t, N> shape_{};
  nb::object owner_;
};

}  // namespace fewbit

template <class T, size_t N>
struct nanobind::detail::type_caster<fewbit::Array<T, N>> {
  using Taken = fewbit::Array<T, N>;
  NB_TYPE_CASTER(Taken, const_name("numpy.ndarray"))
  bool from_python(handle from, uint8_t, cleanup_list*) noexcept { return value.take(from); }
};
