// Which code path runs: chosen at run time by what the processor and the operating system
// offer, never by the machine that built the library.
#pragma once

#include <cstdint>

namespace bitwitness {

enum class Path : std::uint8_t { scalar, avx2, avx512 };

// True if this processor can run `path` and the operating system saves its registers.
bool supported(Path path);

// The widest supported path.
Path best_path();

}  // namespace bitwitness
