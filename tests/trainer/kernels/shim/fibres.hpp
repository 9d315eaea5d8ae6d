// A block of GPU threads on one CPU thread: each GPU thread is a fibre with its own stack, and
// runs until it meets a barrier or a warp-wide operation.
//
// Which fibre runs next is drawn from a seeded generator, so a kernel that lacks a barrier
// gives other bits for another seed; a barrier that some threads never reach ends the launch
// with an error instead of a hang.
//
// A launch may leave one synchronising operation out, named by where the source calls it: what
// the source needs, its tests must miss.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace shim {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

inline constexpr unsigned kWarpSize = 32;

// A copy that cp.async has started and nobody has waited for yet.
struct PendingCopy {
    void* to;
    const void* from;
    int group;
};

struct Fibre {
    void* stack_pointer = nullptr;
    Dim3 index;
    unsigned number = 0;
    std::vector<std::byte> stack;
    std::vector<PendingCopy> copies;
    std::vector<void*> unfenced;  // what has arrived since this fibre's last proxy fence
    int groups = 0;               // cp.async groups committed so far

    unsigned lane() const { return number % kWarpSize; }
    unsigned warp() const { return number / kWarpSize; }
};

// The lanes of a warp that have arrived at a collective, each with its own data.
using Lanes = std::array<void*, kWarpSize>;

Fibre& current();
Dim3 grid_dim();
Dim3 block_dim();
Dim3 block_index();
unsigned char* dynamic_shared();
std::size_t shared_bytes();
// Dynamic shared memory as the asynchronous proxy sees it: it learns of other writes by fences.
unsigned char* async_shared();
std::uint64_t block_serial();  // of the blocks that have run in this process

// Ends the launch with an error, once the running fibre lets go.
void fail(const std::string& fault);
// Notes that a synchronising operation was reached; whether the launch leaves it out.
bool omitted(const char* operation, const char* file, int line);

void block_barrier();
// Waits for all 32 lanes; the last one runs `operate` over what each brought.
void warp_collective(void* mine, const std::function<void(const Lanes&)>& operate);

struct Launch {
    Dim3 grid, block;
    std::size_t shared_bytes;
    std::uint64_t seed;
    int group;          // L of the tensor core (NUMERICS 1.1)
    int fraction_bits;  // F
    int zero_exponent;  // e_zero
    std::string omit;   // "operation file:line", or nothing
};

const Launch& launch();

// Every operation that `omitted` has been asked about since the last call.
std::set<std::string> take_sites();

// Runs one kernel; returns an empty string, or what went wrong.
std::string run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace shim
