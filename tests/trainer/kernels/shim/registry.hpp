// Kernels by name, callable with CUDA's own convention: an array of pointers to arguments.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace shim {

using Call = std::function<void(void**)>;

inline std::map<std::string, Call>& kernels() {
    static std::map<std::string, Call> table;
    return table;
}

template <class... Arguments>
bool add(const char* name, void (*kernel)(Arguments...)) {
    kernels()[name] = [kernel](void** arguments) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            kernel(*static_cast<Arguments*>(arguments[I])...);
        }(std::index_sequence_for<Arguments...>{});
    };
    return true;
}

}  // namespace shim
