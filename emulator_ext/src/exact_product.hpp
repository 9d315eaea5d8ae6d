// One product of the exact profile, by either path.
#pragma once

#include <cstdint>

#include "bitwitness/matrix.hpp"
#include "exact_kernels.hpp"

namespace bitwitness::exact {

// Whether a NaN or an infinity turned up. After one in an operand, d is not to be used.
struct Seen {
    bool operand = false;
    bool product = false;
};

// d [left.rows][right.cols], C-contiguous.
Seen reference_product(const MatrixView<const float>& left, const MatrixView<const float>& right,
                       float* d, int threads);
Seen vector_product(const MatrixView<const float>& left, const MatrixView<const float>& right,
                    float* d, const Kernels& kernels, int threads);

}  // namespace bitwitness::exact
