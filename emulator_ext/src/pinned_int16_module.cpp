// The INT16 part of _bitwitness_pinned: shape checks over the operators, nothing else.
#include "bitwitness/pinned_int16_operators.hpp"
#include "pinned_module.hpp"

namespace pinned_module {
namespace {

using bitwitness::AttentionExtent;
using Codes = nb::ndarray<const std::uint16_t, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using CodesOut = nb::ndarray<std::uint16_t, nb::c_contig, nb::device::cpu>;
using ScalesOut = nb::ndarray<std::uint8_t, nb::c_contig, nb::device::cpu>;
using IndexOut = nb::ndarray<std::int32_t, nb::c_contig, nb::device::cpu>;

// [count, rows, width] of an operand, none of them 0.
template <class Array>
void stack(const char* op, const char* name, const Array& a) {
    if (a.ndim() != 3 || a.size() == 0) {
        throw BadShape(std::string(op) + ": " + name + " has shape " + text(a) +
                       ", expected three extents, none of them 0");
    }
}

void quantise(const In& x, const CodesOut& q, const ScalesOut& scale, int threads) {
    const Extent e = matrix("int16_quantise", "x", x);
    expect("int16_quantise", "q", q, {e.rows, e.width});
    expect("int16_quantise", "scale", scale, {e.rows});
    const nb::gil_scoped_release release;
    bitwitness::int16_quantise(e, x.data(), q.data(), scale.data(), threads);
}

void dequantise(const Codes& q, const Scales& scale, const Out& x, int threads) {
    const Extent e = matrix("int16_dequantise", "q", q);
    expect("int16_dequantise", "scale", scale, {e.rows});
    expect("int16_dequantise", "x", x, {e.rows, e.width});
    const nb::gil_scoped_release release;
    bitwitness::int16_dequantise(e, q.data(), scale.data(), x.data(), threads);
}

void scores(const In& q, const Codes& k, const Scales& k_scale, const Out& result, int threads) {
    constexpr auto kOp = "int16_scores";
    stack(kOp, "q", q);
    stack(kOp, "k", k);
    const AttentionExtent e{extent(q, 0), extent(q, 1), extent(k, 1), extent(q, 2)};
    expect(kOp, "k", k, {e.count, e.keys, e.width});
    expect(kOp, "k_scale", k_scale, {e.count, e.keys});
    expect(kOp, "scores", result, {e.count, e.queries, e.keys});
    const nb::gil_scoped_release release;
    bitwitness::int16_scores(e, q.data(), k.data(), k_scale.data(), result.data(), threads);
}

void mix(const In& p, const Codes& v, const Scales& v_scale, const Out& mixed, int threads) {
    constexpr auto kOp = "int16_mix";
    stack(kOp, "p", p);
    stack(kOp, "v", v);
    const AttentionExtent e{extent(p, 0), extent(p, 1), extent(p, 2), extent(v, 2)};
    expect(kOp, "v", v, {e.count, e.keys, e.width});
    expect(kOp, "v_scale", v_scale, {e.count, e.keys});
    expect(kOp, "mixed", mixed, {e.count, e.queries, e.width});
    const nb::gil_scoped_release release;
    bitwitness::int16_mix(e, p.data(), v.data(), v_scale.data(), mixed.data(), threads);
}

void prefix_softmax(const In& x, std::int64_t live, float scale, const Out& p, int threads) {
    const Extent e = matrix("prefix_softmax", "scores", x);
    expect_same("prefix_softmax", "p", p, x.size());
    if (live < 1 || live > e.width) {
        throw BadShape("prefix_softmax: " + std::to_string(live) + " live entries in a row of " +
                       std::to_string(e.width));
    }
    const nb::gil_scoped_release release;
    bitwitness::prefix_softmax(e, x.data(), live, scale, p.data(), threads);
}

void argmax(const In& x, const IndexOut& index, int threads) {
    const Extent e = matrix("argmax", "x", x);
    expect("argmax", "index", index, {e.rows});
    const nb::gil_scoped_release release;
    bitwitness::argmax(e, x.data(), index.data(), threads);
}

}  // namespace

void bind_int16(nb::module_& m) {
    m.def("int16_quantise", quantise);
    m.def("int16_dequantise", dequantise);
    m.def("int16_scores", scores);
    m.def("int16_mix", mix);
    m.def("prefix_softmax", prefix_softmax);
    m.def("argmax", argmax);
}

}  // namespace pinned_module
