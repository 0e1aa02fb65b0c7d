// The inside of the emulator: threads, blocks, streams, PEs and the network, all owned by one Machine.
#pragma once
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emu.h"
#include "fiber.h"

namespace emu {

struct Block;
struct Pe;

enum class Parked : std::uint8_t { no, barrier, warp, grid, memory, host };

struct Fiber {
  Context context;
  Position at;
  Block* block = nullptr;  // null for host programs
  Pe* pe = nullptr;
  const std::function<void()>* body = nullptr;
  void* order = nullptr;  // TSan: what happened before this thread began, and after it ended
  bool done = false, slow = false;
  std::size_t slot = 0;  // index among the runnable
  Parked parked = Parked::no;
  Note note;
  const std::uint64_t* address = nullptr;  // Parked::memory
  std::uint64_t want = 0;
  std::size_t poll_slot = 0;    // index among the polling
  std::function<bool()> ready;  // Parked::host
  const char* why = "";
  std::uint64_t result = 0;  // of a warp operation
};

struct Gathering : WarpGather {
  std::uint32_t arrived = 0;
  Fiber* who[32];
};

struct Launch;
struct Block {
  struct Barrier {
    unsigned threads = 0;
    std::vector<Fiber*> waiting;
  };
  Launch* launch = nullptr;
  std::unique_ptr<std::byte[]> shared;
  Barrier barriers[16];
  std::vector<std::vector<Gathering>> warps;
  std::vector<Fiber*> fibers;
  unsigned alive = 0;
};

struct Launch {
  std::string name;
  Dim3 grid, block;
  std::size_t shared_bytes;
  bool cooperative;
  std::function<void()> body;
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned next = 0, alive = 0;  // next block to start; blocks that run
  std::vector<Fiber*> at_grid_barrier;
};

struct Event {
  std::uint64_t recorded = 0, reached = 0;
};

struct Stream {
  Pe* pe = nullptr;
  std::deque<std::function<bool()>> work;  // each piece is stepped until it says that it is finished
};

struct Pe {
  int id = 0;
  std::byte* heap = nullptr;
  std::size_t used = 0;
  unsigned resident = 0;
  bool slow = false;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::uint64_t issued = 0, completed = 0, barriers = 0;
};

struct Put {
  int from_pe = 0, to_pe = 0;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::vector<std::byte> copy;  // of the source at issue time, to catch early reuse
  std::vector<std::pair<std::uint32_t, std::uint32_t>> fragments;
  std::uint64_t* signal = nullptr;
  std::uint64_t value = 0;
  int op = 0;
  bool lazy = false;
  void* tsan = nullptr;  // a put is a thread of its own: it follows its issuer and precedes its signal
  char issue = 0;        // its address is the TSan tag of the first of the two
};

struct Machine {
  Config config;
  Stats stats;
  std::uint64_t random_state = 0;
  std::uint64_t clock_ns = 0;
  std::uint64_t events = 0, seen_events = 0;  // anything that could let a stuck thread go on
  unsigned stuck_rounds = 0;                  // how often in a row nothing of the kind happened
  Context scheduler;
  Fiber* running = nullptr;
  std::vector<std::unique_ptr<Pe>> pes;
  std::vector<std::unique_ptr<Fiber>> fibers;  // all that were ever made, in order
  std::vector<Fiber*> runnable, polling, idle_hosts;
  std::vector<std::vector<Fiber*>> spare;  // [PE] ended, to be used again
  std::unordered_map<const void*, std::vector<Fiber*>> by_address;
  std::vector<std::unique_ptr<Put>> network;
  unsigned over_cut_link = 0;  // messages sent over the link that breaks
  std::vector<std::vector<bool>> peer;
  int hosts = 0;  // host programs that have not returned
  std::unique_ptr<Fault> fault;

  std::uint64_t random();
  bool chance(unsigned percent) { return random() % 100 < percent; }

  // scheduler.cc
  Fiber* spawn(const std::function<void()>* body, Pe*, Block*, void* order);
  void make_runnable(Fiber*);
  void park(Parked, const char* why);
  void wait_host(const char* why, std::function<bool()> ready);
  void wake_hosts();
  void wake_address(const void*);
  void loop();
  Fiber* pick();
  void resume(Fiber*);
  void unstick();
  std::string who_waits() const;

  // blocks.cc
  void pump(Pe*);
  bool step(Launch*, Pe*);
  void start_block(Launch*, Pe*);
  void thread_ended(Fiber*);

  // network.cc
  bool is_lost(int from, int to);
  void send(std::unique_ptr<Put>);
  void deliver();
  bool advance(Put&);
  void land_fragment(Put&);
  void apply_signal(std::uint64_t* signal, std::uint64_t value, int op);
};

extern Machine* machine;

template <class T>
T* on_peer(T* p, int pe) {  // the same symmetric address on another PE
  auto* mine = machine->running->pe->heap;
  return reinterpret_cast<T*>(machine->pes[pe]->heap + (reinterpret_cast<const std::byte*>(p) - mine));
}
std::byte* new_heap(std::size_t bytes);
void free_heap(Pe&, std::size_t bytes);
bool is_symmetric(const void* p, std::size_t bytes, const Pe&);

}  // namespace emu
