// The nanobind face of the exact profile. Shapes and dtypes are checked in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bitwitness/exact.hpp"
#include "module_errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Singles = nb::ndarray<const float, nb::device::cpu>;
using Output = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Found = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;

bitwitness::MatrixView<const float> view_of(const Singles& x) {
    const auto n = x.ndim();
    return {x.data(), static_cast<std::int64_t>(x.shape(n - 2)),
            static_cast<std::int64_t>(x.shape(n - 1)), x.stride(n - 2), x.stride(n - 1)};
}

// Element offsets of every matrix of a batch, in C order of the leading dimensions.
std::vector<std::int64_t> offsets_of(const Singles& x) {
    std::vector<std::int64_t> offsets{0};
    for (std::size_t dim = 0; dim + 2 < x.ndim(); ++dim) {
        std::vector<std::int64_t> next;
        for (const std::int64_t base : offsets) {
            for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.shape(dim)); ++i) {
                next.push_back(base + i * x.stride(dim));
            }
        }
        offsets = std::move(next);
    }
    return offsets;
}

// `path` is the value of a Path: that type is registered by another module.
std::optional<Found> gemm(const Singles& a, const Singles& b, const Output& d, int path,
                          int threads) {
    const bitwitness::ExactCall call{view_of(a),    view_of(b), offsets_of(a),
                                     offsets_of(b), d.data(),   static_cast<bitwitness::Path>(path),
                                     threads};
    const nb::gil_scoped_release release;
    const auto found = bitwitness::exact_gemm(call);
    if (!found) return {};
    return Found{static_cast<int>(found->where), found->batch, found->row, found->col};
}

}  // namespace

NB_MODULE(_bitwitness_exact, m) {
    nb::register_exception_translator(bitwitness::translate_environment);
    m.def("gemm", &gemm, "a"_a, "b"_a, "d"_a, "path"_a, "threads"_a);
}
