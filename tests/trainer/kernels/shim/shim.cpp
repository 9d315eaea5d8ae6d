// The C face of the shim: one function, for ctypes.
#include <algorithm>
#include <cstring>

#include "fibres.hpp"
#include "registry.hpp"

namespace {

// Copies text to a buffer of ctypes, cut to its size.
void give(const std::string& text, char* buffer, std::size_t bytes) {
    const std::size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
}

}  // namespace

// Runs a kernel over a grid. Returns 0, or 1 with what went wrong in `fault`.
extern "C" int shim_launch(const char* name, const unsigned* grid, const unsigned* block,
                           std::size_t shared_bytes, void** arguments, std::uint64_t seed,
                           const int* tensor_core, const char* omit, char* fault,
                           std::size_t fault_bytes) {
    const auto found = shim::kernels().find(name);
    std::string text = "no kernel of that name";
    if (found != shim::kernels().end()) {
        const shim::Launch launch{{grid[0], grid[1], grid[2]},
                                  {block[0], block[1], block[2]},
                                  shared_bytes,
                                  seed,
                                  tensor_core[0],
                                  tensor_core[1],
                                  tensor_core[2],
                                  omit};
        text = shim::run(launch, [&] { found->second(arguments); });
    }
    if (text.empty()) return 0;
    give(text, fault, fault_bytes);
    return 1;
}

// The synchronising operations that kernels have reached since the last call, one a line.
extern "C" void shim_sites(char* buffer, std::size_t bytes) {
    std::string text;
    for (const std::string& site : shim::take_sites()) text += site + '\n';
    give(text, buffer, bytes);
}
