#include "wgmma.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "bitwitness/step.hpp"
#include "fibres.hpp"
#include "matrix_descriptor.hpp"

namespace shim {
namespace {

constexpr unsigned kRows = 16;   // of a warp: a quarter of the instruction's 64
constexpr unsigned kDepth = 16;  // along K
constexpr unsigned kWarps = 4;
constexpr std::uint32_t kPoison = 0x7fc0deadU;

using Matrix = std::vector<std::uint16_t>;  // rows of kDepth elements

// One instruction of one warp, from its issue to its end.
struct Pending {
    Wgmma instruction;
    Matrix a, b;  // as they were when it was issued
    float* key;   // lane 0's registers stand for all
    int group;
};

// Accumulators that belong to instructions under way, by lane and register.
struct Held {
    std::array<float*, kWarpSize> registers;
    std::vector<std::array<float, kWarpSize>> values;
};

struct Warp {
    std::deque<Pending> pending;
    std::map<float*, Held> held;
    std::map<float*, int> fences_at_end;  // of the last instruction on these registers
    int fences = 0, groups = 0;
    std::size_t issued = 0;
};

struct Warps {
    std::uint64_t serial = 0;
    std::map<unsigned, Warp> warps;
    std::map<unsigned, std::vector<Wgmma>> issued;  // of a warpgroup
} state;

Warp& current_warp() {
    if (state.serial != block_serial()) state = {block_serial(), {}, {}};
    return state.warps[current().warp()];
}

Matrix read(std::uint64_t bits, unsigned first_row, unsigned rows) {
    const MatrixDescriptor descriptor(bits);
    if (const std::string fault = descriptor.fault(); !fault.empty()) fail("wgmma: " + fault);
    Matrix matrix(rows * kDepth);
    for (unsigned row = 0; row < rows; ++row) {
        for (unsigned chunk = 0; chunk < kDepth / 8; ++chunk) {
            const std::size_t offset = descriptor.chunk(first_row + row, chunk) - shared_window();
            if (offset + 16 > shared_bytes()) {
                fail("wgmma: an operand lies outside shared memory");
                return matrix;
            }
            std::memcpy(&matrix[row * kDepth + chunk * 8], async_shared() + offset, 16);
        }
    }
    return matrix;
}

Matrix read_a(const Wgmma& i) { return read(i.a, current().warp() % kWarps * kRows, kRows); }
Matrix read_b(const Wgmma& i) { return read(i.b, 0, static_cast<unsigned>(i.columns)); }

std::vector<std::array<bitwitness::Unpacked, kDepth>> unpacked(
    const Matrix& matrix, const bitwitness::FormatLayout& layout) {
    std::vector<std::array<bitwitness::Unpacked, kDepth>> rows(matrix.size() / kDepth);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
        rows[i / kDepth][i % kDepth] = unpack(layout, matrix[i]);
    }
    return rows;
}

// D's fragments by the PTX ISA: register 4j + 2h + i of lane l is row l / 4 + 8h of the warp's
// sixteen, column 8j + 2 (l % 4) + i.
void execute(const Pending& p, Held& held) {
    const auto layout = bitwitness::layout_of(p.instruction.format);
    const auto a = unpacked(p.a, layout), b = unpacked(p.b, layout);
    const bitwitness::Arithmetic arithmetic{launch().fraction_bits, launch().group,
                                            launch().zero_exponent, bitwitness::Rounding::rz_f32};
    for (std::size_t r = 0; r < held.values.size(); ++r) {
        for (std::size_t l = 0; l < kWarpSize; ++l) {
            const auto& row = a[l / 4 + r / 2 % 2 * 8];
            const auto& column = b[r / 4 * 8 + l % 4 * 2 + r % 2];
            const float c = p.instruction.accumulate ? held.values[r][l] : 0.0F;
            held.values[r][l] = std::bit_cast<float>(
                bitwitness::chain(row, column, 2 * layout.fraction_bits,
                                  std::bit_cast<std::uint32_t>(c), arithmetic, nullptr));
        }
    }
}

// Takes the registers' values and leaves poison in them.
Held hold(const Lanes& lanes, std::size_t registers) {
    Held held{{}, std::vector<std::array<float, kWarpSize>>(registers)};
    for (std::size_t l = 0; l < kWarpSize; ++l) {
        held.registers[l] = static_cast<float*>(lanes[l]);
        for (std::size_t r = 0; r < registers; ++r) {
            held.values[r][l] = std::exchange(held.registers[l][r], std::bit_cast<float>(kPoison));
        }
    }
    return held;
}

void give_back(const Held& held) {
    for (std::size_t l = 0; l < kWarpSize; ++l) {
        for (std::size_t r = 0; r < held.values.size(); ++r) {
            if (std::bit_cast<std::uint32_t>(held.registers[l][r]) != kPoison) {
                fail("wgmma: an accumulator was written while it was under way");
            }
            held.registers[l][r] = held.values[r][l];
        }
    }
}

// All warps of a warpgroup must issue the same instructions in the same order.
void require_same(Warp& warp, const Wgmma& instruction) {
    auto& issued = state.issued[current().warp() / kWarps];
    if (warp.issued == issued.size()) issued.push_back(instruction);
    if (!(issued[warp.issued++] == instruction)) {
        fail("wgmma: the warps of a warpgroup issue different instructions");
    }
}

void issue(const Lanes& lanes, const Wgmma& instruction) {
    Warp& warp = current_warp();
    require_same(warp, instruction);
    float* const key = static_cast<float*>(lanes[0]);
    if (!warp.held.contains(key)) {
        if (warp.fences <= warp.fences_at_end[key]) {
            fail("wgmma: no wgmma_fence since its registers were accessed");
        }
        warp.held[key] = hold(lanes, static_cast<std::size_t>(instruction.columns / 2));
    }
    warp.pending.push_back(
        {instruction, read_a(instruction), read_b(instruction), key, warp.groups});
}

void finish(Warp& warp, int groups_under_way) {
    while (!warp.pending.empty() && warp.pending.front().group < warp.groups - groups_under_way) {
        const Pending& done = warp.pending.front();
        if (done.a != read_a(done.instruction) || done.b != read_b(done.instruction)) {
            fail("wgmma: an operand changed while it was under way");
        }
        execute(done, warp.held.at(done.key));
        warp.pending.pop_front();
    }
    std::erase_if(warp.held, [&](const auto& entry) {
        for (const Pending& p : warp.pending) {
            if (p.key == entry.first) return false;
        }
        give_back(entry.second);
        warp.fences_at_end[entry.first] = warp.fences;
        return true;
    });
}

// What one lane brings to an issue: its registers, and the instruction as it sees it.
struct Brought {
    float* d;
    const Wgmma* instruction;
};

}  // namespace

unsigned shared_window() { return 1024 + 128 * (1 + static_cast<unsigned>(launch().seed % 3)); }

void wgmma_issue(float* d, const Wgmma& instruction) {
    Brought mine{d, &instruction};
    warp_collective(&mine, [](const Lanes& lanes) {
        const Wgmma& first = *static_cast<Brought*>(lanes[0])->instruction;
        Lanes registers;
        for (std::size_t l = 0; l < kWarpSize; ++l) {
            const auto& brought = *static_cast<Brought*>(lanes[l]);
            if (!(*brought.instruction == first)) fail("wgmma: the lanes of a warp disagree");
            registers[l] = brought.d;
        }
        issue(registers, first);
    });
}

void wgmma_fence() {
    warp_collective(nullptr, [](const Lanes&) { ++current_warp().fences; });
}

void wgmma_commit() {
    warp_collective(nullptr, [](const Lanes&) { ++current_warp().groups; });
}

void wgmma_wait(int groups_under_way) {
    warp_collective(nullptr, [=](const Lanes&) { finish(current_warp(), groups_under_way); });
}

}  // namespace shim
