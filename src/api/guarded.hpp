// What every C function does: exceptions become status codes, messages live per thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "core/error.hpp"
#include "core/message.hpp"
#include "process/float_mode.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// Plain arrays: calls may come after a thread's objects are destroyed, from static destructors and exit handlers.
struct Message {
  char chars[8192];
  void set(std::string_view message) {
    const size_t length = std::min(message.size(), sizeof chars - 1);
    std::memcpy(chars, message.data(), length);
    chars[length] = '\0';
  }
};
inline thread_local Message t_error;

template <typename Fn>
tessella_status guarded(Fn&& fn) noexcept {
  const auto failed = [](tessella_status status, const char* message) {
    t_error.set(message);
    return status;
  };
  // Host code that derives arguments, the reference and the comparator do not depend on the caller's mode. New threads
  // inherit the mode of the thread that creates them; kernels set their own (cpu/parallel.cpp).
  const process::FloatMode mode(process::Subnormals::keep);
  try {
    fn();
    return TESSELLA_OK;
  } catch (const core::Error& error) {
    return failed(static_cast<tessella_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TESSELLA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(TESSELLA_INTERNAL, error.what());
  } catch (...) {
    return failed(TESSELLA_INTERNAL, "unknown exception");
  }
}

inline void require(const void* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) core::invalid(core::message(function, ": ", argument, " is NULL, expected a pointer"));
}

}  // namespace tessella::api
