#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#if defined(EMU_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(EMU_UCONTEXT)
#define EMU_USE_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emu {
namespace {

constexpr std::size_t kGuard = 4096;
#if defined(__SANITIZE_ADDRESS__)
Context* os_thread = nullptr;  // every fiber is entered from it, and learns there where its stack lies
#endif

}  // namespace

#if defined(EMU_USE_UCONTEXT)
static ucontext_t* of(Context& c) {
  return static_cast<ucontext_t*>(c.sp);
}
static void prepare(Context& c, void (*entry)()) {
  if (!c.sp) c.sp = new ucontext_t;
  getcontext(of(c));
  of(c)->uc_stack.ss_sp = c.stack;
  of(c)->uc_stack.ss_size = c.bytes;
  of(c)->uc_link = nullptr;
  makecontext(of(c), entry, 0);
}
static void jump(Context& from, Context& to) {
  if (!from.sp) from.sp = new ucontext_t;
  swapcontext(of(from), of(to));
}
#else
extern "C" void emu_jump(void** save, void* to);
asm(R"(
.text
.globl emu_jump
.type emu_jump,@function
emu_jump:
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
.size emu_jump,.-emu_jump
.section .note.GNU-stack,"",@progbits
.text
)");
static void prepare(Context& c, void (*entry)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(c.stack) + c.bytes) & ~std::uintptr_t{15};
  void** sp = reinterpret_cast<void**>(top - 16);
  *sp = reinterpret_cast<void*>(entry);  // where the first `ret` goes, with the stack aligned as after a call
  sp -= 6;
  std::memset(sp, 0, 6 * sizeof *sp);
  c.sp = sp;
}
static void jump(Context& from, Context& to) {
  emu_jump(&from.sp, to.sp);
}
#endif

void adopt(Context& thread) {
#if defined(EMU_TSAN)
  thread.tsan = __tsan_get_current_fiber();
#elif defined(__SANITIZE_ADDRESS__)
  os_thread = &thread;
#else
  (void)thread;
#endif
}

void create(Context& c, void (*entry)(), std::size_t stack_bytes) {
  if (!c.stack) {
    void* m = mmap(nullptr, stack_bytes + kGuard, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) throw std::bad_alloc();
    mprotect(m, kGuard, PROT_NONE);
    c.stack = static_cast<char*>(m) + kGuard;
    c.bottom = c.stack;
    c.bytes = stack_bytes;
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(c.stack, c.bytes);  // the last owner's frames never returned
  c.asan = nullptr;
#endif
  if (!c.tsan) c.tsan = tsan_create();
  prepare(c, entry);
}

void destroy(Context& c) {
  tsan_destroy(c.tsan);
  if (c.stack) munmap(c.stack - kGuard, c.bytes + kGuard);
#if defined(EMU_USE_UCONTEXT)
  delete of(c);
#endif
  c = Context{};
}

void entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &os_thread->bottom, &os_thread->bytes);
#endif
}

void change(Context& from, Context& to, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.asan, to.bottom, to.bytes);
#endif
  tsan_change(to.tsan);
  jump(from, to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.asan, nullptr, nullptr);
#endif
}

#if defined(EMU_TSAN)
void* tsan_create() {
  return __tsan_create_fiber(0);
}
void tsan_destroy(void* fiber) {
  if (fiber) __tsan_destroy_fiber(fiber);
}
void tsan_change(void* fiber) {
  __tsan_switch_to_fiber(fiber, 1);
}  // 1: the change itself orders nothing
void tsan_release(void* tag) {
  __tsan_release(tag);
}
void tsan_acquire(void* tag) {
  __tsan_acquire(tag);
}
Unwatched::Unwatched() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
Unwatched::~Unwatched() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
void* tsan_create() {
  return nullptr;
}
void tsan_destroy(void*) {}
void tsan_change(void*) {}
void tsan_release(void*) {}
void tsan_acquire(void*) {}
Unwatched::Unwatched() {}
Unwatched::~Unwatched() {}
#endif

}  // namespace emu
