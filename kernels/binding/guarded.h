// Exceptions into statuses, for every function of the C interface that can fail.
#pragma once
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "mox_c.h"

namespace mox {

// As much of the text as there is room for, ended by 0.
inline void put_text(const mox_text& to, const std::string& text) {
  if (to.size == 0) return;
  const std::size_t n = std::min(to.size - 1, text.size());
  std::memcpy(to.text, text.data(), n);
  to.text[n] = '\0';
}

// Runs f; what it throws becomes the error's text.
template <class F>
int guarded(const mox_text& error, F f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    put_text(error, e.what());
    return 1;
  }
}

}  // namespace mox
