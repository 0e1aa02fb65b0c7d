// A stack and the place where its owner stopped. Changing contexts takes a few nanoseconds on x86-64 (six
// pushes) and falls back to ucontext elsewhere. ThreadSanitizer and AddressSanitizer are told about every
// change.
#pragma once
#include <cstddef>

namespace emu {

struct Context {
  void* sp = nullptr;     // saved stack pointer (x86-64), or a ucontext_t
  char* stack = nullptr;  // lowest usable byte, above a guard page; null for the OS thread itself
  std::size_t bytes = 0;
  const void* bottom = nullptr;  // of the stack, as AddressSanitizer wants to know it
  void* tsan = nullptr;          // what ThreadSanitizer calls this fiber
  void* asan = nullptr;          // AddressSanitizer's fake stack while the owner does not run
};

void adopt(Context& thread);                                        // the OS thread that runs everything
void create(Context& c, void (*entry)(), std::size_t stack_bytes);  // reuses c.stack when there is one
void destroy(Context& c);                                           // gives the stack back to the system
void change(Context& from, Context& to, bool for_good = false);     // for_good: `from` never runs again
void entered();                                                     // first call of every entry function

// ThreadSanitizer's view; no-ops in other builds
void* tsan_create();
void tsan_destroy(void* fiber);
void tsan_change(void* fiber);
void tsan_release(void* tag);
void tsan_acquire(void* tag);

// The emulator's own bookkeeping is not the program under test: races in it are not reported.
struct Unwatched {
  Unwatched();
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace emu
