#include "pinned_rows_choice.hpp"

#include <array>

namespace bitwitness {
namespace {

std::vector<const RowKernels*> available() {
    std::vector<const RowKernels*> found{&kRowsBase};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found.push_back(&kRowsAvx2);
    }
    return found;
}

std::atomic<const RowKernels*>& selected() {
    static std::atomic<const RowKernels*> kernels{available().back()};
    return kernels;
}

}  // namespace

const RowKernels& rows() { return *selected().load(std::memory_order_relaxed); }

std::vector<std::string> pinned_paths() {
    std::vector<std::string> names;
    for (const RowKernels* kernels : available()) names.emplace_back(kernels->name);
    return names;
}

void select_pinned_path(const std::string& name) {
    for (const RowKernels* kernels : available()) {
        if (name == kernels->name) {
            selected() = kernels;
            return;
        }
    }
    throw OutOfRange("no path '" + name + "' on this processor");
}

void Finite::watch(const float* base, std::int64_t first, std::int64_t n) {
    if (rows().any_nonfinite(base + first, n) == 0U) return;
    std::int64_t at = first;
    while (is_nonfinite(base[at]) == 0U) ++at;
    std::int64_t seen = first_bad_;
    while (at < seen && !first_bad_.compare_exchange_weak(seen, at)) {
    }
}

void Finite::require() const {
    const std::int64_t at = first_bad_;
    if (at == kNone) return;
    throw NonFinite(op_ + ": " + result_ + " is NaN or infinite, first at flat index " +
                    std::to_string(at));
}

}  // namespace bitwitness
