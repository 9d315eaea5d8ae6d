// The nanobind face: arrays in, arrays out. Shapes and dtypes are checked in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <stdexcept>
#include <tuple>

#include "bitwitness/gemm.hpp"
#include "bitwitness/matmul.hpp"
#include "bitwitness/other_engines.hpp"
#include "bitwitness/parallel.hpp"
#include "module_errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using bitwitness::Arithmetic;
using bitwitness::Format;
using bitwitness::MatrixView;
using bitwitness::Operand;
using bitwitness::Path;

using Bits = nb::ndarray<nb::ro, nb::device::cpu>;
using Singles = nb::ndarray<const float, nb::device::cpu>;
using Output = nb::ndarray<nb::c_contig, nb::device::cpu>;

Operand operand_of(const Bits& x, Format format) {
    return {x.data(),
            static_cast<std::int64_t>(x.shape(0)),
            static_cast<std::int64_t>(x.shape(1)),
            x.stride(0),
            x.stride(1),
            format};
}

using Counts = std::tuple<std::int64_t, std::int64_t>;

template <bitwitness::RegionCounts (*kMatmul)(const bitwitness::MatmulCall&)>
Counts matmul(const Bits& a, Format a_format, const Bits& b, Format b_format,
              const std::optional<Bits>& c, const Output& d, const Arithmetic& arithmetic,
              std::int64_t block, bool count_regions, Path path, int threads) {
    const bitwitness::MatmulCall call{.left = operand_of(a, a_format),
                                      .right = operand_of(b, b_format),
                                      .c = c ? c->data() : nullptr,
                                      .d = d.data(),
                                      .arithmetic = arithmetic,
                                      .block = block,
                                      .count_regions = count_regions,
                                      .path = path,
                                      .threads = threads};
    const nb::gil_scoped_release release;
    const auto counts = kMatmul(call);
    return {counts.special, counts.at_zero_floor};
}

// Row i of a against row i of b: n independent chains.
template <bitwitness::RegionCounts (*kDot)(const bitwitness::DotCall&)>
Counts dot(const Bits& a, Format a_format, const Bits& b, Format b_format,
           const std::optional<Bits>& c, const Output& d, const Arithmetic& arithmetic,
           std::int64_t block) {
    const bitwitness::DotCall call{operand_of(a, a_format),
                                   operand_of(b, b_format),
                                   c ? c->data() : nullptr,
                                   d.data(),
                                   arithmetic,
                                   block};
    const nb::gil_scoped_release release;
    bitwitness::require_ieee_environment();
    const auto counts = kDot(call);
    return {counts.special, counts.at_zero_floor};
}

using Doubles = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;
using DoubleOutput = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

MatrixView<const double> view_of(const Doubles& x) {
    return {x.data(), static_cast<std::int64_t>(x.shape(0)), static_cast<std::int64_t>(x.shape(1)),
            x.stride(0), x.stride(1)};
}

std::int64_t matmul_f64(const Doubles& a, const Doubles& b, const std::optional<DoubleOutput>& c,
                        const DoubleOutput& d, Path path, int threads) {
    const bitwitness::DoubleMatmulCall call{view_of(a), view_of(b), c ? c->data() : nullptr,
                                            d.data(),   path,       threads};
    const nb::gil_scoped_release release;
    return bitwitness::matmul_f64(call);
}

std::int64_t dot_f64(const Doubles& a, const Doubles& b,
                     const std::optional<nb::ndarray<double, nb::ndim<1>, nb::c_contig>>& c,
                     const nb::ndarray<double, nb::ndim<1>, nb::c_contig>& d) {
    const bitwitness::DoubleMatmulCall call{view_of(a), view_of(b),   c ? c->data() : nullptr,
                                            d.data(),   Path::scalar, 1};
    const nb::gil_scoped_release release;
    bitwitness::require_ieee_environment();
    return bitwitness::dot_f64(call);
}

void matmul_integer(const Bits& a, Format a_format, const Bits& b, Format b_format,
                    const std::optional<Integers>& c, const Integers& d, Path path, int threads) {
    const bitwitness::IntegerMatmulCall call{operand_of(a, a_format),
                                             operand_of(b, b_format),
                                             c ? c->data() : nullptr,
                                             d.data(),
                                             path,
                                             threads};
    const nb::gil_scoped_release release;
    bitwitness::matmul_integer(call);
}

MatrixView<const float> view_of(const Singles& x) {
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

using Found = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;

std::optional<Found> gemm(bitwitness::Profile profile, const Singles& a, const Singles& b,
                          const Output& d, const Arithmetic& arithmetic, Path path, int threads) {
    const bitwitness::GemmCall call{profile,       view_of(a),    view_of(b),
                                    offsets_of(a), offsets_of(b), static_cast<float*>(d.data()),
                                    arithmetic,    path,          threads};
    const nb::gil_scoped_release release;
    const auto found = bitwitness::gemm(call);
    if (!found) return {};
    return Found{static_cast<int>(found->where), found->batch, found->row, found->col};
}

}  // namespace

NB_MODULE(_bitwitness_mma, m) {
    nb::register_exception_translator(bitwitness::translate_environment);
    nb::enum_<Format>(m, "Format")
        .value("f16", Format::f16)
        .value("bf16", Format::bf16)
        .value("tf32", Format::tf32)
        .value("e4m3", Format::e4m3)
        .value("e5m2", Format::e5m2)
        .value("f64", Format::f64)
        .value("s8", Format::s8)
        .value("u8", Format::u8);
    nb::enum_<Path>(m, "Path")
        .value("scalar", Path::scalar)
        .value("avx2", Path::avx2)
        .value("avx512", Path::avx512);
    nb::enum_<bitwitness::Profile>(m, "Profile")
        .value("fp32", bitwitness::Profile::fp32)
        .value("bf16", bitwitness::Profile::bf16)
        .value("heal", bitwitness::Profile::heal);
    nb::enum_<bitwitness::Rounding>(m, "Rounding")
        .value("rz_f32", bitwitness::Rounding::rz_f32)
        .value("rz_e8m13", bitwitness::Rounding::rz_e8m13)
        .value("rne_f16", bitwitness::Rounding::rne_f16);
    nb::class_<Arithmetic>(m, "Arithmetic")
        .def(
            "__init__",
            [](Arithmetic* self, int fraction_bits, int group, int zero_exponent,
               bitwitness::Rounding rounding) {
                new (self) Arithmetic{fraction_bits, group, zero_exponent, rounding};
            },
            "fraction_bits"_a, "group"_a, "zero_exponent"_a, "rounding"_a);
    m.def("supported", &bitwitness::supported, "path"_a);
    const auto def_matmul = [&m](const char* name, auto function) {
        m.def(name, function, "a"_a, "a_format"_a, "b"_a, "b_format"_a, "c"_a.none(), "d"_a,
              "arithmetic"_a, "block"_a, "count_regions"_a, "path"_a, "threads"_a);
    };
    def_matmul("matmul", &matmul<&bitwitness::matmul>);
    def_matmul("matmul_fp8_through_f16", &matmul<&bitwitness::matmul_fp8_through_f16>);
    m.def("matmul_f64", &matmul_f64, "a"_a, "b"_a, "c"_a.none(), "d"_a, "path"_a, "threads"_a);
    m.def("matmul_integer", &matmul_integer, "a"_a, "a_format"_a, "b"_a, "b_format"_a, "c"_a.none(),
          "d"_a, "path"_a, "threads"_a);
    const auto def_dot = [&m](const char* name, auto function) {
        m.def(name, function, "a"_a, "a_format"_a, "b"_a, "b_format"_a, "c"_a.none(), "d"_a,
              "arithmetic"_a, "block"_a);
    };
    def_dot("dot", &dot<&bitwitness::dot>);
    def_dot("dot_fp8_through_f16", &dot<&bitwitness::dot_fp8_through_f16>);
    m.def("dot_f64", &dot_f64, "a"_a, "b"_a, "c"_a.none(), "d"_a);
    m.def("gemm", &gemm, "profile"_a, "a"_a, "b"_a, "d"_a, "arithmetic"_a, "path"_a, "threads"_a);
}
