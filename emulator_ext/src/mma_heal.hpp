// The heal profile on one matrix pair.
#pragma once

#include "bitwitness/cpu.hpp"
#include "bitwitness/matrix.hpp"
#include "bitwitness/step.hpp"

namespace bitwitness {

void heal_gemm(const MatrixView<const float>& left, const MatrixView<const float>& right, float* d,
               const Arithmetic& arithmetic, Path path, int threads);

}  // namespace bitwitness
