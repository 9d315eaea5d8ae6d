// The pinned operators that are loops over rows: norms, rotations, softmax, SwiGLU, loss.
#include "bitwitness/pinned_operators.hpp"

#include "pinned_rows_choice.hpp"

namespace bitwitness {
namespace {

void require_index(const char* op, const char* name, const std::int32_t* index, std::int64_t n,
                   std::int64_t size) {
    for (std::int64_t i = 0; i < n; ++i) {
        if (index[i] < 0 || index[i] >= size) {
            throw OutOfRange(std::string(op) + ": " + name + "[" + std::to_string(i) +
                             "] = " + std::to_string(index[i]) + " is not in [0, " +
                             std::to_string(size) + ")");
        }
    }
}

auto scalar_kernel(Scalar function) {
    switch (function) {
        case Scalar::exp2:
            return rows().exp2;
        case Scalar::log2:
            return rows().log2;
        case Scalar::tanh:
            return rows().tanh;
        case Scalar::erf:
            return rows().erf;
        case Scalar::sigmoid:
            break;
    }
    return rows().sigmoid;
}

const char* scalar_name(Scalar function) {
    constexpr const char* kNames[] = {"exp2", "log2", "tanh", "erf", "sigmoid"};
    return kNames[static_cast<int>(function)];
}

}  // namespace

void check_finite(const std::string& op, const std::string& result, const float* x, std::int64_t n,
                  int threads) {
    Finite finite(op, result);
    for_rows(threads, n, 1,
             [&](std::int64_t first, std::int64_t last) { finite.watch(x, first, last - first); });
    finite.require();
}

void apply_scalar(Scalar function, const float* x, std::int64_t n, float* y, int threads) {
    const auto kernel = scalar_kernel(function);
    Finite finite(scalar_name(function), "y");
    for_rows(threads, n, kScalarCost, [&](std::int64_t first, std::int64_t last) {
        kernel(x + first, y + first, last - first);
        finite.watch(y, first, last - first);
    });
    finite.require();
}

void rmsnorm(Extent e, const float* x, const float* weight, float eps, float* y, float* rstd,
             int threads) {
    Finite finite("rmsnorm", "y");
    Finite finite_rstd("rmsnorm", "rstd");
    for_rows(threads, e.rows, 2 * e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            rstd[r] = rows().rmsnorm(x + r * e.width, weight, eps, e.width, y + r * e.width);
        }
        finite.watch(y, first * e.width, (last - first) * e.width);
        finite_rstd.watch(rstd, first, last - first);
    });
    finite_rstd.require();
    finite.require();
}

void rmsnorm_backward(Extent e, const float* dy, const float* x, const float* weight,
                      const float* rstd, float* dx, float* dweight, int threads) {
    Finite finite("rmsnorm_backward", "dx");
    for_rows(threads, e.rows, 2 * e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t at = r * e.width;
            rows().rmsnorm_backward(dy + at, x + at, weight, rstd[r], e.width, dx + at);
        }
        finite.watch(dx, first * e.width, (last - first) * e.width);
    });
    // As many columns as keep the lanes in the second-level cache.
    constexpr std::int64_t kColumns = 64;
    const std::int64_t blocks = (e.width + kColumns - 1) / kColumns;
    const int useful = e.rows * e.width < kGrain ? 1 : threads;
    parallel_for(useful, blocks, [&](std::int64_t block) {
        const std::int64_t first = block * kColumns;
        const std::int64_t last = std::min(e.width, first + kColumns);
        std::vector<float> lanes(static_cast<std::size_t>(kLanes * (last - first)));
        rows().rmsnorm_dweight(dy, x, rstd, e.rows, e.width, first, last, lanes.data(), dweight);
    });
    finite.require();
    check_finite("rmsnorm_backward", "dweight", dweight, e.width, 1);
}

void rope(RopeExtent e, const float* x, const float* cos, const float* sin, bool inverse, float* y,
          int threads) {
    Finite finite("rope", "y");
    const std::int64_t width = 2 * e.half;
    const float direction = inverse ? -1.0F : 1.0F;
    for_rows(threads, e.outer * e.time, width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t at = (r % e.time) * e.half;
            rows().rope(x + r * width, cos + at, sin + at, direction, e.half, y + r * width);
        }
        finite.watch(y, first * width, (last - first) * width);
    });
    finite.require();
}

void causal_softmax(std::int64_t count, std::int64_t time, const float* scores, float scale,
                    float* p, int threads) {
    Finite finite("causal_softmax", "p");
    const float constant = softmax_constant(scale);
    const std::int64_t cost = time * kScalarCost;
    for_rows(threads, count * time, cost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            rows().softmax(scores + r * time, constant, r % time + 1, time, p + r * time);
        }
        finite.watch(p, first * time, (last - first) * time);
    });
    finite.require();
}

void causal_softmax_backward(std::int64_t count, std::int64_t time, const float* p, const float* dp,
                             float scale, float* dscores, int threads) {
    Finite finite("causal_softmax_backward", "dscores");
    for_rows(threads, count * time, time, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t at = r * time;
            rows().softmax_backward(p + at, dp + at, scale, r % time + 1, time, dscores + at);
        }
        finite.watch(dscores, first * time, (last - first) * time);
    });
    finite.require();
}

void swiglu(Extent e, const float* gate_up, float* y, int threads) {
    Finite finite("swiglu", "y");
    const std::int64_t cost = e.width * kScalarCost;
    for_rows(threads, e.rows, cost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* gate = gate_up + 2 * r * e.width;
            rows().swiglu(gate, gate + e.width, e.width, y + r * e.width);
        }
        finite.watch(y, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

void swiglu_backward(Extent e, const float* dy, const float* gate_up, float* dgate_up,
                     int threads) {
    Finite finite("swiglu_backward", "dgate_up");
    const std::int64_t cost = e.width * kScalarCost;
    for_rows(threads, e.rows, cost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t at = 2 * r * e.width;
            rows().swiglu_backward(dy + r * e.width, gate_up + at, gate_up + at + e.width, e.width,
                                   dgate_up + at, dgate_up + at + e.width);
        }
        finite.watch(dgate_up, 2 * first * e.width, 2 * (last - first) * e.width);
    });
    finite.require();
}

void cross_entropy(Extent e, const float* logits, const std::int32_t* targets, float* loss,
                   int threads) {
    require_index("cross_entropy", "targets", targets, e.rows, e.width);
    std::vector<float> losses(static_cast<std::size_t>(e.rows));
    const std::int64_t cost = e.width * kScalarCost;
    for_rows(threads, e.rows, cost, [&](std::int64_t first, std::int64_t last) {
        std::vector<float> scratch(static_cast<std::size_t>(e.width));
        for (std::int64_t r = first; r < last; ++r) {
            losses[static_cast<std::size_t>(r)] =
                rows().cross_entropy(logits + r * e.width, e.width, targets[r], scratch.data());
        }
    });
    check_finite("cross_entropy", "loss of a row", losses.data(), e.rows, 1);
    *loss = div_rn(rows().lane_sum(losses.data(), e.rows), static_cast<float>(e.rows));
    check_finite("cross_entropy", "loss", loss, 1, 1);
}

void cross_entropy_backward(Extent e, float dloss, const float* logits, const std::int32_t* targets,
                            float* dlogits, int threads) {
    require_index("cross_entropy_backward", "targets", targets, e.rows, e.width);
    Finite finite("cross_entropy_backward", "dlogits");
    const float share = div_rn(dloss, static_cast<float>(e.rows));
    const std::int64_t cost = e.width * kScalarCost;
    for_rows(threads, e.rows, cost, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t at = r * e.width;
            rows().cross_entropy_backward(logits + at, e.width, targets[r], share, dlogits + at);
        }
        finite.watch(dlogits, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

void embedding(Extent e, const std::int32_t* tokens, const float* table, std::int64_t vocab,
               float* y, int threads) {
    require_index("embedding", "tokens", tokens, e.rows, vocab);
    Finite finite("embedding", "y");
    for_rows(threads, e.rows, e.width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            std::copy_n(table + tokens[r] * e.width, e.width, y + r * e.width);
        }
        finite.watch(y, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

void embedding_backward(Extent e, const std::int32_t* tokens, const float* dy, std::int64_t vocab,
                        float* dtable, int threads) {
    require_index("embedding_backward", "tokens", tokens, e.rows, vocab);
    Finite finite("embedding_backward", "dtable");
    // Counting sort: stable, so each token's positions stay ascending.
    std::vector<std::int64_t> start(static_cast<std::size_t>(vocab + 1), 0);
    for (std::int64_t r = 0; r < e.rows; ++r) ++start[static_cast<std::size_t>(tokens[r]) + 1];
    for (std::size_t t = 1; t < start.size(); ++t) start[t] += start[t - 1];
    std::vector<std::int64_t> position(static_cast<std::size_t>(e.rows));
    std::vector<std::int64_t> next(start.begin(), start.end() - 1);
    for (std::int64_t r = 0; r < e.rows; ++r) {
        position[static_cast<std::size_t>(next[static_cast<std::size_t>(tokens[r])]++)] = r;
    }
    const std::int64_t cost = e.width * (1 + e.rows / vocab);
    for_rows(threads, vocab, cost, [&](std::int64_t first, std::int64_t last) {
        std::fill(dtable + first * e.width, dtable + last * e.width, 0.0F);
        for (std::int64_t t = first; t < last; ++t) {
            float* sum = dtable + t * e.width;
            const auto begin = static_cast<std::size_t>(start[static_cast<std::size_t>(t)]);
            const auto end = static_cast<std::size_t>(start[static_cast<std::size_t>(t) + 1]);
            for (std::size_t i = begin; i < end; ++i) {
                rows().add(sum, dy + position[i] * e.width, sum, e.width);
            }
        }
        finite.watch(dtable, first * e.width, (last - first) * e.width);
    });
    finite.require();
}

}  // namespace bitwitness
