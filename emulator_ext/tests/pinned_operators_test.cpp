// Operators: bits do not depend on the thread count or the instruction set, the lane
// reduction is the documented one, and bad results and indices are named.
#include "bitwitness/pinned_operators.hpp"

#include <array>
#include <functional>
#include <limits>

#include "bitwitness/philox.h"
#include "pinned_check.hpp"

namespace {

namespace bw = bitwitness;
using pinned_check::same_bits;
using pinned_check::that;
using Floats = std::vector<float>;

Floats noise(std::size_t n, std::uint32_t stream) {
    std::vector<std::uint32_t> words(n);
    bw::philox(7, stream, 0, static_cast<std::int64_t>(n), words.data(), 1);
    Floats x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = 8.0F * bw::unit_interval(words[i]) - 4.0F;
    return x;
}

std::vector<std::int32_t> indices(std::size_t n, std::int32_t size) {
    std::vector<std::int32_t> index(n);
    for (std::size_t i = 0; i < n; ++i) {
        index[i] = static_cast<std::int32_t>(i * i) % size;
    }
    return index;
}

// Runs every operator once over odd sizes and returns all results, end to end.
Floats everything(int threads) {
    constexpr std::size_t kRows = 301;
    constexpr std::size_t kWidth = 403;
    constexpr std::size_t kSize = kRows * kWidth;
    const Floats x = noise(kSize, 1);
    const Floats dy = noise(kSize, 2);
    const Floats weight = noise(kWidth, 3);
    const Floats stacked = noise(2 * kSize, 4);
    const auto index = indices(kRows, kWidth);
    const bw::Extent e{kRows, kWidth};
    Floats all;
    const auto keep = [&all](const Floats& part) {
        all.insert(all.end(), part.begin(), part.end());
    };

    Floats y(kSize);
    Floats rstd(kRows);
    bw::rmsnorm(e, x.data(), weight.data(), 1e-5F, y.data(), rstd.data(), threads);
    keep(y);
    keep(rstd);
    Floats dweight(kWidth);
    bw::rmsnorm_backward(e, dy.data(), x.data(), weight.data(), rstd.data(), y.data(),
                         dweight.data(), threads);
    keep(y);
    keep(dweight);

    Floats wide(2 * kSize);
    bw::rope({2, kRows, kWidth / 2}, stacked.data(), x.data(), dy.data(), true, wide.data(),
             threads);
    keep(wide);
    bw::swiglu(e, stacked.data(), y.data(), threads);
    keep(y);
    bw::swiglu_backward(e, dy.data(), stacked.data(), wide.data(), threads);
    keep(wide);

    constexpr std::size_t kTime = 97;
    const std::size_t squares = kSize / (kTime * kTime);
    Floats p(squares * kTime * kTime);
    Floats dscores(p.size());
    const auto count = static_cast<std::int64_t>(squares);
    bw::causal_softmax(count, kTime, x.data(), 0.3F, p.data(), threads);
    keep(p);
    bw::causal_softmax_backward(count, kTime, p.data(), dy.data(), 0.3F, dscores.data(), threads);
    keep(dscores);

    bw::embedding_backward(e, index.data(), dy.data(), kWidth, wide.data(), threads);
    wide.resize(kWidth * kWidth);
    keep(wide);
    Floats loss(1);
    bw::cross_entropy(e, x.data(), index.data(), loss.data(), threads);
    keep(loss);
    bw::cross_entropy_backward(e, 0.7F, x.data(), index.data(), y.data(), threads);
    keep(y);
    bw::sum_squares(x.data(), kSize, loss.data(), threads);
    keep(loss);

    const std::array<float, 3> scalars{1e-3F, 10.0F, 20.0F};
    Floats m(kSize);
    Floats v(kSize);
    Floats second(kSize);
    for (std::size_t i = 0; i < kSize; ++i) second[i] = x[i] * x[i];
    bw::adamw(kSize, x.data(), dy.data(), dy.data(), second.data(), 0.5F, scalars.data(),
              {0.9F, 0.95F, 1e-8F, 0.1F}, y.data(), m.data(), v.data(), threads);
    keep(y);
    keep(m);
    keep(v);
    Floats total(kWidth);
    bw::tree_sum(kRows, kWidth, x.data(), total.data(), threads);
    keep(total);
    for (const auto f :
         {bw::Scalar::exp2, bw::Scalar::tanh, bw::Scalar::erf, bw::Scalar::sigmoid}) {
        bw::apply_scalar(f, x.data(), kSize, y.data(), threads);
        keep(y);
    }
    bw::apply_scalar(bw::Scalar::log2, second.data(), kSize, y.data(), threads);
    keep(y);
    return all;
}

void paths_and_threads_agree() {
    bw::select_pinned_path("base");
    const Floats expected = everything(1);
    for (const std::string& path : bw::pinned_paths()) {
        bw::select_pinned_path(path);
        for (const int threads : {1, 2, 3}) {
            const Floats got = everything(threads);
            that(got.size() == expected.size(), "number of results");
            const std::size_t bytes = expected.size() * sizeof(float);
            that(std::memcmp(got.data(), expected.data(), bytes) == 0, path.c_str(), threads);
        }
    }
}

// The reduction, written as the document has it.
float plain_sum_of_squares(const Floats& x) {
    std::array<float, 256> lane{};
    for (std::size_t t = 0; t < 256; ++t) {
        for (std::size_t i = t; i < x.size(); i += 256) lane[t] = lane[t] + x[i] * x[i];
    }
    for (std::size_t apart = 128; apart >= 1; apart /= 2) {
        for (std::size_t t = 0; t < apart; ++t) lane[t] = lane[t] + lane[t + apart];
    }
    return lane[0];
}

void reduction_is_the_documented_one() {
    for (const std::size_t n : {1U, 2U, 63U, 64U, 65U, 255U, 256U, 257U, 1000U, 100003U}) {
        const Floats x = noise(n, 9);
        float sum = 0;
        bw::sum_squares(x.data(), static_cast<std::int64_t>(n), &sum, 2);
        that(same_bits(sum, plain_sum_of_squares(x)), "sum of squares", static_cast<double>(n));
    }
}

template <class Error>
std::string message_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was thrown";
}

void faults_are_named() {
    Floats x = noise(70000, 5);
    x[69000] = std::numeric_limits<float>::quiet_NaN();
    x[41000] = std::numeric_limits<float>::infinity();
    Floats y(x.size());
    const std::string bad = message_of<bw::NonFinite>(
        [&] { bw::apply_scalar(bw::Scalar::exp2, x.data(), 70000, y.data(), 3); });
    that(bad == "exp2: y is NaN or infinite, first at flat index 41000", bad.c_str());
    const std::int32_t tokens[] = {0, 3};
    const std::string outside = message_of<bw::OutOfRange>(
        [&] { bw::embedding({2, 1}, tokens, x.data(), 3, y.data(), 1); });
    that(outside == "embedding: tokens[1] = 3 is not in [0, 3)", outside.c_str());
}

}  // namespace

int main() {
    paths_and_threads_agree();
    reduction_is_the_documented_one();
    faults_are_named();
    return pinned_check::result();
}
