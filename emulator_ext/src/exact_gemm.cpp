#include <cmath>

#include "bitwitness/exact.hpp"
#include "bitwitness/parallel.hpp"
#include "exact_product.hpp"

namespace bitwitness {
namespace {

using exact::Seen;

std::optional<NonFinite> find(const MatrixView<const float>& x, NonFinite::Where where,
                              std::int64_t batch) {
    for (std::int64_t i = 0; i < x.rows; ++i) {
        for (std::int64_t j = 0; j < x.cols; ++j) {
            if (!std::isfinite(x.at(i, j))) return NonFinite{where, batch, i, j};
        }
    }
    return {};
}

std::optional<NonFinite> compute(const ExactCall& call, std::int64_t batch, int threads) {
    const auto at = static_cast<std::size_t>(batch);
    MatrixView<const float> left = call.left;
    MatrixView<const float> right = call.right;
    left.data += call.left_offsets[at];
    right.data += call.right_offsets[at];
    float* d = call.d + batch * left.rows * right.cols;
    const exact::Kernels* kernels = exact::kernels(call.path);
    const Seen seen = kernels != nullptr ? exact::vector_product(left, right, d, *kernels, threads)
                                         : exact::reference_product(left, right, d, threads);
    if (seen.operand) {
        const auto found = find(left, NonFinite::Where::left, batch);
        return found ? found : find(right, NonFinite::Where::right, batch);
    }
    if (!seen.product) return {};
    return find({d, left.rows, right.cols, right.cols, 1}, NonFinite::Where::product, batch);
}

}  // namespace

const exact::Kernels* exact::kernels(Path path) {
    if (path == Path::avx2) return avx2_kernels();
    if (path != Path::avx512) return nullptr;
    const bool vnni = __builtin_cpu_supports("avx512vnni") != 0;
    return vnni ? avx512_vnni_kernels() : avx512_kernels();
}

std::optional<NonFinite> exact_gemm(const ExactCall& call) {
    const auto batch = std::ssize(call.left_offsets);
    std::vector<std::optional<NonFinite>> found(static_cast<std::size_t>(batch));
    const bool outer = batch >= call.threads;  // else the threads work inside one product
    const int inner = outer ? 1 : call.threads;
    parallel_for(outer ? call.threads : 1, batch, [&](std::int64_t i) {
        found[static_cast<std::size_t>(i)] = compute(call, i, inner);
    });
    for (const auto& f : found) {
        if (f) return f;
    }
    return {};
}

}  // namespace bitwitness
