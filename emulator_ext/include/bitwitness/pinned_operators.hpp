// The pinned operators of a training step over whole C-contiguous f32 arrays, on the host.
//
// Formulas and orders of operations: docs/formats/operators.md. Every function spreads rows
// over up to `threads` threads, with bits independent of their number; none allocates its
// results, and results must not overlap operands. All throw NonFinite when a result is NaN
// or infinite, and OutOfRange for a token or target outside its table.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace bitwitness {

// A result of a pinned operator is NaN or infinite.
class NonFinite : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// An index operand points outside what it indexes.
class OutOfRange : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Rows of a matrix, row by row.
struct Extent {
    std::int64_t rows;
    std::int64_t width;
};

// The instruction sets of the row kernels that this processor has, widest last.
std::vector<std::string> pinned_paths();
// Makes every later call use one of them; the default is the widest. For tests.
void select_pinned_path(const std::string& name);

// Throws NonFinite naming `op`, `result` and the first flat index if x has a NaN or Inf.
void check_finite(const std::string& op, const std::string& result, const float* x, std::int64_t n,
                  int threads);

enum class Scalar { exp2, log2, tanh, erf, sigmoid };
void apply_scalar(Scalar function, const float* x, std::int64_t n, float* y, int threads);

void rmsnorm(Extent e, const float* x, const float* weight, float eps, float* y, float* rstd,
             int threads);
void rmsnorm_backward(Extent e, const float* dy, const float* x, const float* weight,
                      const float* rstd, float* dx, float* dweight, int threads);

// x [outer, time, 2 * half]; cos and sin [time, half].
struct RopeExtent {
    std::int64_t outer;
    std::int64_t time;
    std::int64_t half;
};
void rope(RopeExtent e, const float* x, const float* cos, const float* sin, bool inverse, float* y,
          int threads);

// scores, p, dp, dscores [count, time, time].
void causal_softmax(std::int64_t count, std::int64_t time, const float* scores, float scale,
                    float* p, int threads);
void causal_softmax_backward(std::int64_t count, std::int64_t time, const float* p, const float* dp,
                             float scale, float* dscores, int threads);

// gate_up and dgate_up [rows, 2 * width], the gate first; y and dy [rows, width].
void swiglu(Extent e, const float* gate_up, float* y, int threads);
void swiglu_backward(Extent e, const float* dy, const float* gate_up, float* dgate_up, int threads);

// table and dtable [vocab, width]; tokens [rows].
void embedding(Extent e, const std::int32_t* tokens, const float* table, std::int64_t vocab,
               float* y, int threads);
void embedding_backward(Extent e, const std::int32_t* tokens, const float* dy, std::int64_t vocab,
                        float* dtable, int threads);

// logits and dlogits [rows, width]; targets [rows]; the loss is the mean over rows.
void cross_entropy(Extent e, const float* logits, const std::int32_t* targets, float* loss,
                   int threads);
void cross_entropy_backward(Extent e, float dloss, const float* logits, const std::int32_t* targets,
                            float* dlogits, int threads);

void sum_squares(const float* x, std::int64_t n, float* sum, int threads);
void clip(float sum_of_squares, float max_norm, float* norm, float* coefficient);

struct AdamWHyper {
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
};
// scalars: learning rate, 1/(1 - beta1^t), 1/(1 - beta2^t).
void adamw(std::int64_t n, const float* p, const float* g, const float* m, const float* v,
           float coefficient, const float* scalars, AdamWHyper hyper, float* p1, float* m1,
           float* v1, int threads);

// shards [ranks, n]: neighbours are added in pairs, level by level; an odd last one moves up.
void tree_sum(std::int64_t ranks, std::int64_t n, const float* shards, float* total, int threads);

// Words of the Philox stream (seed, stream, step), and their map to [0, 1).
void philox(std::uint64_t seed, std::uint32_t stream, std::uint64_t step, std::int64_t count,
            std::uint32_t* words, int threads);
void unit_intervals(const std::uint32_t* words, std::int64_t count, float* y);

}  // namespace bitwitness
