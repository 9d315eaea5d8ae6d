#include "fibres.hpp"

#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <utility>

// Where the linker put the kernels' static __shared__ arrays (host_device.hpp).
extern "C" unsigned char __start_kernel_shared[] __attribute__((weak));
extern "C" unsigned char __stop_kernel_shared[] __attribute__((weak));

// Saves the callee-saved registers of the System V ABI on this stack, stores the stack pointer
// in *from and continues on `to`.
extern "C" void shim_switch(void** from, void* to);
asm(R"(
.text
.globl shim_switch
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");

namespace shim {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

struct Warp {
    Lanes lanes{};
    std::vector<unsigned> waiting;
};

struct Block {
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::vector<unsigned> ready, at_barrier;
    std::vector<unsigned char> shared, async_shared;
    std::uint64_t serial = 0;
    std::string fault;
    unsigned finished = 0;
    unsigned running = 0;
    void* scheduler = nullptr;
    Dim3 index;
    const std::function<void()>* kernel = nullptr;
    Launch launch{};
};

Block block;  // one launch at a time
std::set<std::string> sites;
// What `omitted` has answered in this launch.
std::map<std::tuple<const char*, const char*, int>, bool> asked;

void back_to_scheduler() {
    shim_switch(&block.fibres[block.running].stack_pointer, block.scheduler);
}

void fibre_main() {
    (*block.kernel)();
    ++block.finished;
    back_to_scheduler();
    __builtin_unreachable();
}

void prepare(Fibre& fibre, unsigned number, Dim3 size) {
    fibre.number = number;
    fibre.index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
    fibre.copies.clear();
    fibre.unfenced.clear();
    fibre.groups = 0;
    fibre.stack.resize(kStackBytes);
    auto top =
        reinterpret_cast<std::uintptr_t>(fibre.stack.data() + kStackBytes) & ~std::uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top);
    // As a call leaves it: the return address lies 8 below a multiple of 16.
    words[-2] = reinterpret_cast<void*>(&fibre_main);
    for (int i = 3; i <= 8; ++i) words[-i] = nullptr;
    fibre.stack_pointer = words - 8;
}

void poison_shared() {
    std::memset(block.shared.data(), 0xff, block.shared.size());
    std::memset(block.async_shared.data(), 0xff, block.async_shared.size());
    if (__start_kernel_shared != nullptr) {
        std::memset(__start_kernel_shared, 0xff,
                    static_cast<std::size_t>(__stop_kernel_shared - __start_kernel_shared));
    }
}

std::string run_block(std::mt19937_64& random) {
    const Dim3 size = block.launch.block;
    const unsigned threads = size.x * size.y * size.z;
    block.fibres.resize(threads);
    block.warps.assign((threads + kWarpSize - 1) / kWarpSize, {});
    block.at_barrier.clear();
    block.finished = 0;
    block.ready.clear();
    block.fault.clear();
    ++block.serial;
    poison_shared();
    for (unsigned i = 0; i < threads; ++i) {
        prepare(block.fibres[i], i, size);
        block.ready.push_back(i);
    }
    while (!block.ready.empty()) {
        std::swap(block.ready[random() % block.ready.size()], block.ready.back());
        block.running = block.ready.back();
        block.ready.pop_back();
        shim_switch(&block.scheduler, block.fibres[block.running].stack_pointer);
        if (!block.fault.empty()) return block.fault;
    }
    if (block.finished == threads) return {};
    return "block (" + std::to_string(block.index.x) + ", " + std::to_string(block.index.y) + ", " +
           std::to_string(block.index.z) + ") hangs: " + std::to_string(block.finished) + " of " +
           std::to_string(threads) + " threads finished, " +
           std::to_string(block.at_barrier.size()) + " wait at a barrier";
}

}  // namespace

Fibre& current() { return block.fibres[block.running]; }
Dim3 grid_dim() { return block.launch.grid; }
Dim3 block_dim() { return block.launch.block; }
Dim3 block_index() { return block.index; }
unsigned char* dynamic_shared() { return block.shared.data(); }
std::size_t shared_bytes() { return block.shared.size(); }
unsigned char* async_shared() { return block.async_shared.data(); }
std::uint64_t block_serial() { return block.serial; }
const Launch& launch() { return block.launch; }

void fail(const std::string& fault) {
    if (block.fault.empty()) block.fault = fault;
}

bool omitted(const char* operation, const char* file, int line) {
    const auto [found, added] = asked.try_emplace({operation, file, line}, false);
    if (added) {
        const std::string path = file;
        const std::string site = std::string(operation) + " " + path.substr(path.rfind('/') + 1) +
                                 ":" + std::to_string(line);
        sites.insert(site);
        found->second = site == block.launch.omit;
    }
    return found->second;
}

std::set<std::string> take_sites() { return std::exchange(sites, {}); }

void block_barrier() {
    block.at_barrier.push_back(block.running);
    if (block.at_barrier.size() == block.fibres.size()) std::swap(block.at_barrier, block.ready);
    back_to_scheduler();
}

void warp_collective(void* mine, const std::function<void(const Lanes&)>& operate) {
    Warp& warp = block.warps[current().warp()];
    warp.lanes[current().lane()] = mine;
    warp.waiting.push_back(block.running);
    if (warp.waiting.size() == kWarpSize) {
        operate(warp.lanes);
        block.ready.insert(block.ready.end(), warp.waiting.begin(), warp.waiting.end());
        warp.waiting.clear();
    }
    back_to_scheduler();
}

std::string run(const Launch& launch, const std::function<void()>& kernel) {
    block.launch = launch;
    block.kernel = &kernel;
    asked.clear();
    block.shared.assign(launch.shared_bytes, 0);
    block.async_shared.assign(launch.shared_bytes, 0);
    std::mt19937_64 random(launch.seed);
    for (unsigned z = 0; z < launch.grid.z; ++z) {
        for (unsigned y = 0; y < launch.grid.y; ++y) {
            for (unsigned x = 0; x < launch.grid.x; ++x) {
                block.index = {x, y, z};
                const std::string fault = run_block(random);
                if (!fault.empty()) return fault;
            }
        }
    }
    return {};
}

}  // namespace shim
