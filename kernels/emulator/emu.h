// A CPU stand-in for "CUDA + NVSHMEM" that runs kernel source unchanged, deterministically, in one OS thread.
//
// Every CUDA thread is a fiber, every PE has a host program of its own; a seeded scheduler picks who runs next,
// and holds some PEs, blocks and warps back so that they fall behind.
//
// The network is as hostile as the specification allows: a non-blocking put reads its source late and lands in
// shuffled fragments, ordered against nothing but its own signal; some puts land only when nothing else can
// move; some pairs of PEs are load/store peers instead, whose puts are stores of the calling warp.
//
// Nothing runnable and nothing in flight is a deadlock: run() throws a Fault that says who waits for what.
//
// This header is what tests and the shims of cuda_runtime.h and nvshmem.h use; machine.h is the inside.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

namespace emu {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  Dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  unsigned count() const { return x * y * z; }
};

struct Config {
  std::uint64_t seed = 1;
  int pes = 4;
  std::size_t heap_bytes = std::size_t{64} << 20;  // symmetric memory of each PE
  unsigned resident_blocks = 0;                    // blocks of one PE that run at the same time; 0: all
  unsigned fragment_bytes = 512;                   // longest piece of a put that lands at once
  unsigned network_percent = 50;                   // how often the network moves rather than a thread
  unsigned lazy_percent = 20;                      // puts that land only once every thread is stuck
  unsigned peer_percent = 0;                       // pairs of PEs that are load/store peers
  unsigned slow_percent = 15;                      // PEs, blocks and warps that are held back
  bool check_source = true;                        // modifying the source of a put in flight is a fault
  bool time_passes =
      false;  // when stuck, advance the clock (deadlines expire) instead of reporting a deadlock
  int cut_from = -1,
      cut_to = -1;  // a link that breaks: after cut_after messages from the one to the other, none arrives
  unsigned cut_after = 0;
  std::size_t stack_bytes = std::size_t{64} << 10;
};

struct Stats {
  std::uint64_t switches = 0, puts = 0, put_bytes = 0, remote_puts = 0, remote_bytes = 0, signals = 0,
                fragments = 0, threads = 0, launches = 0;
};

enum class FaultKind { deadlock, source_reuse, misuse, failed };

struct Fault : std::runtime_error {
  FaultKind kind;
  Fault(FaultKind k, const std::string& what) : std::runtime_error(what), kind(k) {}
};

// Runs host(pe) on every PE until all of them, their streams and the network are done. Throws Fault.
Stats run(const Config&, const std::function<void(int pe)>& host);

// Ends the run with a fault; from host programs and kernels.
[[noreturn]] void fail(FaultKind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// What the calling thread is about to wait for, for the deadlock report.
struct Note {
  const char* phase = nullptr;
  int peer = -1;
  std::int64_t token = -1;
};
void note(const char* phase, int peer, std::int64_t token);

// ---- threads
struct Position {
  Dim3 thread, block, block_dim, grid_dim;
  unsigned linear = 0;  // thread in its block
};
extern const Position* here;  // of the running thread
void yield();
std::byte* shared_memory();
void barrier(unsigned id, unsigned threads);
void grid_barrier();
struct WarpGather {
  std::uint32_t mask = 0;
  std::uint64_t value[32];
  int source[32];
};
using WarpOp = std::uint64_t (*)(const WarpGather&, int lane);
// `orders`: __syncwarp orders memory among its lanes; shuffles and votes only wait for each other
std::uint64_t warp_op(std::uint32_t mask, std::uint64_t value, int source, WarpOp, bool orders = false);
std::uint64_t now_ns();

// ---- host side of one PE
struct Stream;
struct Event;
Stream* default_stream();
Stream* new_stream();
Event* new_event();
std::string function_name(const void* function);  // as far as the dynamic symbol table knows
void launch(Stream*, const std::string& name, Dim3 grid, Dim3 block, std::size_t shared_bytes,
            bool cooperative, std::function<void()> body);
void enqueue(Stream*, std::function<void()> work);  // runs in stream order
void record(Stream*, Event*);
void wait(Stream*, Event*);
void synchronize(Stream*);
void synchronize_all();

template <class... P, class... A>
void launch_kernel(Stream* s, const std::string& name, void (*kernel)(P...), Dim3 grid, Dim3 block,
                   std::size_t shared_bytes, bool cooperative, A... args) {
  std::tuple<std::decay_t<P>...> copy{args...};
  launch(s, name, grid, block, shared_bytes, cooperative, [kernel, copy] { std::apply(kernel, copy); });
}

// ---- NVSHMEM
int my_pe();
int pes();
void* symmetric_alloc(std::size_t bytes);  // null when the heap is full, on every PE alike
void barrier_all();
void put(void* to, const void* from, std::size_t bytes, std::uint64_t* signal, std::uint64_t value, int op,
         int pe);
void signal(std::uint64_t* signal, std::uint64_t value, int op, int pe);
bool poll(std::uint64_t* address, int comparison,
          std::uint64_t value);  // may return late, as a spinning loop would

}  // namespace emu
