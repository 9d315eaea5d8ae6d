#include "bitwitness/cpu.hpp"

namespace bitwitness {

bool supported(Path path) {
    // __builtin_cpu_supports reads cpuid and, through xgetbv, whether the operating system
    // saves the wide registers.
    switch (path) {
        case Path::scalar:
            return true;
        case Path::avx2:
            return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                   __builtin_cpu_supports("f16c") != 0;
        case Path::avx512:
            return __builtin_cpu_supports("avx512f") != 0 &&
                   __builtin_cpu_supports("avx512bw") != 0 &&
                   __builtin_cpu_supports("avx512vl") != 0 &&
                   __builtin_cpu_supports("avx512dq") != 0;
    }
    return false;
}

Path best_path() {
    if (supported(Path::avx512)) return Path::avx512;
    return supported(Path::avx2) ? Path::avx2 : Path::scalar;
}

}  // namespace bitwitness
