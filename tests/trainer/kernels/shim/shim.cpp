// The C face of the shim: one function, for ctypes.
#include <algorithm>
#include <cstring>

#include "fibres.hpp"
#include "registry.hpp"

// Runs a kernel over a grid. Returns 0, or 1 with what went wrong in `fault`.
extern "C" int shim_launch(const char* name, const unsigned* grid, const unsigned* block,
                           std::size_t shared_bytes, void** arguments, std::uint64_t seed,
                           const int* tensor_core, char* fault, std::size_t fault_bytes) {
    const auto found = shim::kernels().find(name);
    std::string text = "no kernel of that name";
    if (found != shim::kernels().end()) {
        const shim::Launch launch{{grid[0], grid[1], grid[2]},
                                  {block[0], block[1], block[2]},
                                  shared_bytes,
                                  seed,
                                  tensor_core[0],
                                  tensor_core[1],
                                  tensor_core[2]};
        text = shim::run(launch, [&] { found->second(arguments); });
    }
    if (text.empty()) return 0;
    const std::size_t length = std::min(text.size(), fault_bytes - 1);
    std::memcpy(fault, text.data(), length);
    fault[length] = '\0';
    return 1;
}
