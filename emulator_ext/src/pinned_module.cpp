// The Python module _bitwitness_pinned: shape checks and nothing else over the operators.
//
// Callers pass C-contiguous arrays of the right dtype and allocate the results;
// emulator_ext/pinned.py does both and is the public face. C++ errors become the classes of
// emulator_ext.errors.
#include "pinned_module.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module_errors.hpp"

namespace nb = nanobind;

namespace {

using namespace pinned_module;

// Same as matrix, for operands whose width is two halves.
Extent half_matrix(const char* op, const char* name, const In& a) {
    const Extent e = matrix(op, name, a);
    if (e.width % 2 != 0) {
        throw BadShape(std::string(op) + ": " + name + " has an odd width, shape " + text(a));
    }
    return {e.rows, e.width / 2};
}

void rmsnorm(const In& x, const In& weight, float eps, const Out& y, const Out& rstd, int threads) {
    const Extent e = matrix("rmsnorm", "x", x);
    expect("rmsnorm", "weight", weight, {e.width});
    expect("rmsnorm", "y", y, {e.rows, e.width});
    expect("rmsnorm", "rstd", rstd, {e.rows});
    const nb::gil_scoped_release release;
    bitwitness::rmsnorm(e, x.data(), weight.data(), eps, y.data(), rstd.data(), threads);
}

void rmsnorm_backward(const In& dy, const In& x, const In& weight, const In& rstd, const Out& dx,
                      const Out& dweight, int threads) {
    constexpr auto kOp = "rmsnorm_backward";
    const Extent e = matrix(kOp, "x", x);
    expect(kOp, "dy", dy, {e.rows, e.width});
    expect(kOp, "weight", weight, {e.width});
    expect(kOp, "rstd", rstd, {e.rows});
    expect(kOp, "dx", dx, {e.rows, e.width});
    expect(kOp, "dweight", dweight, {e.width});
    const nb::gil_scoped_release release;
    bitwitness::rmsnorm_backward(e, dy.data(), x.data(), weight.data(), rstd.data(), dx.data(),
                                 dweight.data(), threads);
}

void rope(const In& x, const In& cos, const In& sin, bool inverse, const Out& y, int threads) {
    const Extent table = matrix("rope", "cos", cos);
    expect("rope", "sin", sin, {table.rows, table.width});
    if (x.ndim() != 3 || x.size() == 0) {
        throw BadShape("rope: x has shape " + text(x) + ", expected [..., T, D]");
    }
    expect("rope", "x", x, {extent(x, 0), table.rows, 2 * table.width});
    expect_same("rope", "y", y, x.size());
    const nb::gil_scoped_release release;
    bitwitness::rope({extent(x, 0), table.rows, table.width}, x.data(), cos.data(), sin.data(),
                     inverse, y.data(), threads);
}

// The common extent of [N, T, T] arrays.
Extent square(const char* op, const char* name, const In& a) {
    if (a.ndim() != 3 || a.size() == 0 || a.shape(1) != a.shape(2)) {
        throw BadShape(std::string(op) + ": " + name + " has shape " + text(a) +
                       ", expected [..., T, T]");
    }
    return {extent(a, 0), extent(a, 1)};
}

void causal_softmax(const In& scores, float scale, const Out& p, int threads) {
    const Extent e = square("causal_softmax", "scores", scores);
    expect_same("causal_softmax", "p", p, scores.size());
    const nb::gil_scoped_release release;
    bitwitness::causal_softmax(e.rows, e.width, scores.data(), scale, p.data(), threads);
}

void causal_softmax_backward(const In& p, const In& dp, float scale, const Out& dscores,
                             int threads) {
    constexpr auto kOp = "causal_softmax_backward";
    const Extent e = square(kOp, "p", p);
    expect(kOp, "dp", dp, {e.rows, e.width, e.width});
    expect_same(kOp, "dscores", dscores, p.size());
    const nb::gil_scoped_release release;
    bitwitness::causal_softmax_backward(e.rows, e.width, p.data(), dp.data(), scale, dscores.data(),
                                        threads);
}

void swiglu(const In& gate_up, const Out& y, int threads) {
    const Extent e = half_matrix("swiglu", "gate_up", gate_up);
    expect("swiglu", "y", y, {e.rows, e.width});
    const nb::gil_scoped_release release;
    bitwitness::swiglu(e, gate_up.data(), y.data(), threads);
}

void swiglu_backward(const In& dy, const In& gate_up, const Out& dgate_up, int threads) {
    const Extent e = half_matrix("swiglu_backward", "gate_up", gate_up);
    expect("swiglu_backward", "dy", dy, {e.rows, e.width});
    expect_same("swiglu_backward", "dgate_up", dgate_up, gate_up.size());
    const nb::gil_scoped_release release;
    bitwitness::swiglu_backward(e, dy.data(), gate_up.data(), dgate_up.data(), threads);
}

void embedding(const Index& tokens, const In& table, const Out& y, int threads) {
    const Extent t = matrix("embedding", "table", table);
    const auto count = static_cast<std::int64_t>(tokens.size());
    expect("embedding", "tokens", tokens, {count});
    expect("embedding", "y", y, {count, t.width});
    const nb::gil_scoped_release release;
    bitwitness::embedding({count, t.width}, tokens.data(), table.data(), t.rows, y.data(), threads);
}

void embedding_backward(const Index& tokens, const In& dy, const Out& dtable, int threads) {
    const Extent e = matrix("embedding_backward", "dy", dy);
    const Extent t = matrix("embedding_backward", "dtable", dtable);
    expect("embedding_backward", "tokens", tokens, {e.rows});
    expect("embedding_backward", "dtable", dtable, {t.rows, e.width});
    const nb::gil_scoped_release release;
    bitwitness::embedding_backward(e, tokens.data(), dy.data(), t.rows, dtable.data(), threads);
}

void cross_entropy(const In& logits, const Index& targets, const Out& loss, int threads) {
    const Extent e = matrix("cross_entropy", "logits", logits);
    expect("cross_entropy", "targets", targets, {e.rows});
    expect("cross_entropy", "loss", loss, {});
    const nb::gil_scoped_release release;
    bitwitness::cross_entropy(e, logits.data(), targets.data(), loss.data(), threads);
}

void cross_entropy_backward(const In& dloss, const In& logits, const Index& targets,
                            const Out& dlogits, int threads) {
    constexpr auto kOp = "cross_entropy_backward";
    const Extent e = matrix(kOp, "logits", logits);
    expect(kOp, "dloss", dloss, {});
    expect(kOp, "targets", targets, {e.rows});
    expect(kOp, "dlogits", dlogits, {e.rows, e.width});
    const nb::gil_scoped_release release;
    bitwitness::cross_entropy_backward(e, *dloss.data(), logits.data(), targets.data(),
                                       dlogits.data(), threads);
}

void sum_squares(const In& x, const Out& sum, int threads) {
    expect("sum_squares", "sum", sum, {});
    const nb::gil_scoped_release release;
    bitwitness::sum_squares(x.data(), static_cast<std::int64_t>(x.size()), sum.data(), threads);
}

void clip_coefficient(const In& sum, float max_norm, const Out& norm, const Out& coefficient) {
    expect("clip_coefficient", "sum_squares", sum, {});
    expect("clip_coefficient", "norm", norm, {});
    expect("clip_coefficient", "coefficient", coefficient, {});
    bitwitness::clip(*sum.data(), max_norm, norm.data(), coefficient.data());
}

void adamw(const In& p, const In& g, const In& m, const In& v, const In& coefficient,
           const In& scalars, float beta1, float beta2, float eps, float weight_decay,
           const Out& p1, const Out& m1, const Out& v1, int threads) {
    expect_same("adamw", "g", g, p.size());
    expect_same("adamw", "m", m, p.size());
    expect_same("adamw", "v", v, p.size());
    expect("adamw", "coefficient", coefficient, {});
    expect("adamw", "scalars", scalars, {3});
    for (const Out* result : {&p1, &m1, &v1}) expect_same("adamw", "result", *result, p.size());
    const nb::gil_scoped_release release;
    bitwitness::adamw(static_cast<std::int64_t>(p.size()), p.data(), g.data(), m.data(), v.data(),
                      *coefficient.data(), scalars.data(), {beta1, beta2, eps, weight_decay},
                      p1.data(), m1.data(), v1.data(), threads);
}

void tree_sum(const In& shards, const Out& total, int threads) {
    const Extent e = matrix("tree_sum", "shards", shards);
    expect("tree_sum", "total", total, {e.width});
    const nb::gil_scoped_release release;
    bitwitness::tree_sum(e.rows, e.width, shards.data(), total.data(), threads);
}

void apply_scalar(int function, const In& x, const Out& y, int threads) {
    expect_same("scalar", "y", y, x.size());
    const nb::gil_scoped_release release;
    bitwitness::apply_scalar(static_cast<bitwitness::Scalar>(function), x.data(),
                             static_cast<std::int64_t>(x.size()), y.data(), threads);
}

void check_finite(const std::string& op, const std::string& name, const In& x, int threads) {
    const nb::gil_scoped_release release;
    bitwitness::check_finite(op, name, x.data(), static_cast<std::int64_t>(x.size()), threads);
}

void philox(std::uint64_t seed, std::uint32_t stream, std::uint64_t step, const Words& words,
            int threads) {
    const nb::gil_scoped_release release;
    bitwitness::philox(seed, stream, step, static_cast<std::int64_t>(words.size()), words.data(),
                       threads);
}

void unit_intervals(const Words& words, const Out& y) {
    expect_same("unit_interval", "y", y, words.size());
    const nb::gil_scoped_release release;
    bitwitness::unit_intervals(words.data(), static_cast<std::int64_t>(words.size()), y.data());
}

// Errors surface as the package's own classes.
void translate(const std::exception_ptr& error, void*) {
    const auto raise = bitwitness::raise_python;
    try {
        std::rethrow_exception(error);
    } catch (const bitwitness::NonFinite& e) {
        raise("NonFiniteError", e.what());
    } catch (const bitwitness::OutOfRange& e) {
        raise("OperandError", e.what());
    } catch (const BadShape& e) {
        raise("OperandError", e.what());
    }
}

}  // namespace

NB_MODULE(_bitwitness_pinned, m) {
    nb::register_exception_translator(bitwitness::translate_environment);
    nb::register_exception_translator(translate);
    m.def("rmsnorm", rmsnorm);
    m.def("rmsnorm_backward", rmsnorm_backward);
    m.def("rope", rope);
    m.def("causal_softmax", causal_softmax);
    m.def("causal_softmax_backward", causal_softmax_backward);
    m.def("swiglu", swiglu);
    m.def("swiglu_backward", swiglu_backward);
    m.def("embedding", embedding);
    m.def("embedding_backward", embedding_backward);
    m.def("cross_entropy", cross_entropy);
    m.def("cross_entropy_backward", cross_entropy_backward);
    m.def("sum_squares", sum_squares);
    m.def("clip_coefficient", clip_coefficient);
    m.def("adamw", adamw);
    m.def("tree_sum", tree_sum);
    m.def("scalar", apply_scalar);
    m.def("check_finite", check_finite);
    m.def("philox", philox);
    m.def("unit_interval", unit_intervals);
    bind_int16(m);
    m.def("paths", bitwitness::pinned_paths);
    m.def("select_path", bitwitness::select_pinned_path);
}
