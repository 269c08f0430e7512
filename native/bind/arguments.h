// What Python passes in: arrays and numbers, each checked, and refused by its name, before anything below sees it.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo {

namespace nb = nanobind;

template <typename T, size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, size_t N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array = nb::ndarray<nb::numpy, T>;

[[noreturn]] inline void fail(const std::string& message) { throw std::invalid_argument(message); }

inline void check(bool good, const std::string& message) {
  if (!good) fail(message);
}

inline std::string text_of(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

// What was given where an array was wanted.
inline std::string described(nb::handle value) {
  std::string text = text_of(value.type().attr("__name__"));
  if (nb::hasattr(value, "dtype")) text += " of " + text_of(value.attr("dtype"));
  if (nb::hasattr(value, "shape")) text += " with shape " + text_of(value.attr("shape"));
  return text;
}

template <typename Nd>
Nd array_of(const char* name, const std::string& wanted, nb::handle value) {
  Nd array;
  if (!nb::try_cast(value, array, false))  // never converted: a copy would be written to, or made at every step
    throw nb::type_error(
        (std::string(name) + " must be a C-contiguous " + wanted + "; got " + described(value)).c_str());
  // The compiler takes it for granted that a number lies at a multiple of its size.
  constexpr size_t kSize = sizeof(typename Nd::Scalar);
  if (reinterpret_cast<uintptr_t>(array.data()) % kSize != 0)
    throw nb::type_error((std::string(name) + " must be a C-contiguous " + wanted + ", aligned to " +
                          std::to_string(kSize) + " bytes; got " + described(value) + " that is not")
                             .c_str());
  return array;
}

template <typename T, size_t N>
std::string kind_of() {
  const std::string type = std::is_same_v<T, float>      ? "float32"
                           : std::is_same_v<T, int32_t>  ? "int32"
                           : std::is_same_v<T, uint64_t> ? "uint64"
                                                         : "?";
  return type + " array with " + std::to_string(N) + (N == 1 ? " dimension" : " dimensions");
}

// The arguments are taken as objects and converted here, so that an error can say which one is wrong.
template <typename T, size_t N>
In<T, N> in(const char* name, nb::handle value) {
  return array_of<In<T, N>>(name, kind_of<T, N>(), value);
}

template <typename T, size_t N>
Out<T, N> out(const char* name, nb::handle value) {
  return array_of<Out<T, N>>(name, "writable " + kind_of<T, N>(), value);
}

// Every value of `array` lies in [low, high).
inline void check_range(const char* name, const int32_t* values, size_t count, int64_t low, int64_t high) {
  for (size_t i = 0; i < count; i++)
    if (values[i] < low || values[i] >= high)
      fail(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + "; allowed are " +
           std::to_string(low) + " to " + std::to_string(high - 1));
}

inline void check_length(const char* name, size_t given, size_t wanted) {
  if (given != wanted)
    fail(std::string(name) + " has " + std::to_string(given) + " entries, expected " + std::to_string(wanted));
}

inline void check_between(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(std::string(name) + " is " + std::to_string(value) + "; allowed are " + std::to_string(low) + " to " +
         std::to_string(high));
}

inline void check_positive(const char* name, float value) {
  if (!(value > 0 && value <= 1e30f)) fail(std::string(name) + " must be above 0; got " + std::to_string(value));
}

// One of a few words.
template <typename T>
T named(const char* name, const std::string& value, const std::vector<std::pair<const char*, T>>& allowed) {
  std::string list;
  for (const auto& [text, result] : allowed) {
    if (value == text) return result;
    list += std::string(list.empty() ? "" : ", ") + text;
  }
  fail(std::string(name) + " is '" + value + "'; allowed are " + list);
}

// starts [n + 1] cuts a flat array of `total` entries into n slices.
inline void check_starts(const char* name, const In<int32_t, 1>& starts, size_t n, size_t total) {
  check_length(name, starts.shape(0), n + 1);
  const int32_t* s = starts.data();
  check(s[0] == 0 && size_t(s[n]) == total, std::string(name) + " must run from 0 to " + std::to_string(total));
  for (size_t i = 0; i < n; i++) check(s[i] <= s[i + 1], std::string(name) + " must not descend");
}

template <typename T>
Array<T> new_array(std::vector<size_t> shape) {
  size_t count = 1;
  for (size_t extent : shape) count *= extent;
  auto data = std::make_unique<T[]>(std::max<size_t>(count, 1));
  T* pointer = data.get();
  nb::capsule owner(pointer, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  (void)data.release();
  return Array<T>(pointer, shape.size(), shape.data(), owner);
}

// How an array is declared: so that None, too, is refused by name.
inline auto array_arg(const char* name) { return nb::arg(name).none(); }

}  // namespace octavo
