// How C++ exceptions become the package's own Python errors.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

#include "bitwitness/fpenv.hpp"

namespace bitwitness {

// Sets a class of emulator_ext.errors as the Python error; it is looked up only when needed.
inline void raise_python(const char* type, const char* what) {
    namespace nb = nanobind;
    const nb::object cls = nb::module_::import_("emulator_ext.errors").attr(type);
    PyErr_SetString(cls.ptr(), what);
}

// For register_exception_translator; what it does not know goes on to the next translator.
inline void translate_environment(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const FloatEnvironment& e) {
        raise_python("FloatEnvironmentError", e.what());
    }
}

}  // namespace bitwitness
