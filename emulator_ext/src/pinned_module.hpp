// Shape checks shared by the two parts of the Python module _bitwitness_pinned.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>

#include "bitwitness/pinned_operators.hpp"

namespace pinned_module {

namespace nb = nanobind;

using bitwitness::Extent;
using In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Index = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<std::uint32_t, nb::c_contig, nb::device::cpu>;

// A shape that an operator cannot take.
class BadShape : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

inline std::string text(std::initializer_list<std::int64_t> shape) {
    std::string out = "(";
    for (const std::int64_t extent : shape) out += std::to_string(extent) + ", ";
    return out + ")";
}

template <class Array>
std::string text(const Array& a) {
    std::string out = "(";
    for (std::size_t i = 0; i < a.ndim(); ++i) out += std::to_string(a.shape(i)) + ", ";
    return out + ")";
}

template <class Array>
void expect(const char* op, const char* name, const Array& a,
            std::initializer_list<std::int64_t> shape) {
    bool same = a.ndim() == shape.size();
    std::size_t i = 0;
    for (const std::int64_t extent : shape) {
        same = same && static_cast<std::int64_t>(a.shape(i)) == extent;
        ++i;
    }
    if (!same) {
        throw BadShape(std::string(op) + ": " + name + " has shape " + text(a) + ", expected " +
                       text(shape));
    }
}

template <class Array>
void expect_same(const char* op, const char* name, const Array& a, std::size_t size) {
    if (a.size() != size) {
        throw BadShape(std::string(op) + ": " + name + " has " + std::to_string(a.size()) +
                       " elements, expected " + std::to_string(size));
    }
}

template <class Array>
std::int64_t extent(const Array& a, std::size_t axis) {
    return static_cast<std::int64_t>(a.shape(axis));
}

// The two extents of a matrix, neither of them 0.
template <class Array>
Extent matrix(const char* op, const char* name, const Array& a) {
    if (a.ndim() != 2 || a.size() == 0) {
        throw BadShape(std::string(op) + ": " + name + " has shape " + text(a) +
                       ", expected two extents, neither of them 0");
    }
    return {extent(a, 0), extent(a, 1)};
}

// Adds the operators over INT16 vectors.
void bind_int16(nb::module_& m);

}  // namespace pinned_module
