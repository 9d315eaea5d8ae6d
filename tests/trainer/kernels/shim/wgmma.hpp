// wgmma on the CPU: what is under way, and when it shows.
//
// The model is as unfavourable as the PTX ISA allows. Each warp is on its own. From its issue until
// its group has been waited for, an instruction's accumulator registers hold poison, and a change
// of its operands in shared memory is an error, as it may read them at any moment in between.
#pragma once

#include <cstdint>

#include "bitwitness/format.hpp"

namespace shim {

struct Wgmma {
    std::uint64_t a, b;  // matrix descriptors
    bitwitness::Format format;
    int columns;
    bool accumulate;

    bool operator==(const Wgmma&) const = default;
};

// Where the shared window's dynamic part begins, in bytes: never aligned to more than 128.
unsigned shared_window();

void wgmma_issue(float* d, const Wgmma& instruction);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int groups_under_way);

}  // namespace shim
