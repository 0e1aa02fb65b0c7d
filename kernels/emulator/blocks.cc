// Streams, launches, blocks, and what their threads do together: barriers and warp operations.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "machine.h"

namespace emu {

void Machine::start_block(Launch* l, Pe* pe) {
  const unsigned i = l->next++;
  auto b = std::make_unique<Block>();
  b->launch = l;
  b->shared.reset(new std::byte[l->shared_bytes]);
  if (l->shared_bytes) std::memset(b->shared.get(), 0xA5, l->shared_bytes);  // a GPU does not clear it either
  const unsigned n = l->block.count();
  b->alive = n;
  b->warps.resize((n + 31) / 32);
  const bool slow_block = chance(config.slow_percent);
  bool slow_warp = false;
  for (unsigned t = 0; t < n; t++) {
    if (t % 32 == 0) slow_warp = chance(config.slow_percent);
    Fiber* f = spawn(&l->body, pe, b.get(), pe);
    f->slow = pe->slow || slow_block || slow_warp;
    f->at.linear = t;
    f->at.thread = Dim3(t % l->block.x, t / l->block.x % l->block.y, t / (l->block.x * l->block.y));
    f->at.block = Dim3(i % l->grid.x, i / l->grid.x % l->grid.y, i / (l->grid.x * l->grid.y));
    f->at.block_dim = l->block;
    f->at.grid_dim = l->grid;
    b->fibers.push_back(f);
  }
  stats.threads += n;
  l->alive++;
  pe->resident++;
  l->blocks.push_back(std::move(b));
}

bool Machine::step(Launch* l, Pe* pe) {
  const unsigned limit = config.resident_blocks && !l->cooperative ? config.resident_blocks : ~0u;
  while (l->next < l->grid.count() && pe->resident < limit) start_block(l, pe);
  return l->next == l->grid.count() && l->alive == 0;
}

void Machine::pump(Pe* pe) {
  for (bool moved = true; moved;) {  // an event that was reached may start another stream
    moved = false;
    for (auto& s : pe->streams)
      while (!s->work.empty() && s->work.front()()) {
        s->work.pop_front();
        moved = true;
      }
  }
  wake_hosts();
}

void Machine::thread_ended(Fiber* f) {
  Block* b = f->block;
  if (--b->alive) return;
  b->launch->alive--;
  f->pe->resident--;
  pump(f->pe);
}

std::byte* shared_memory() {
  return machine->running->block->shared.get();
}

void barrier(unsigned id, unsigned threads) {
  const Unwatched guard;
  Fiber* f = machine->running;
  auto& b = f->block->barriers[id];
  if (b.waiting.empty()) b.threads = threads;
  if (b.threads != threads)
    fail(FaultKind::misuse, "PE %d %s: thread %u calls barrier %u for %u threads, others for %u", f->pe->id,
         f->block->launch->name.c_str(), f->at.linear, id, threads, b.threads);
  tsan_release(&b);
  if (b.waiting.size() + 1 < threads) {
    b.waiting.push_back(f);
    machine->park(Parked::barrier, "barrier of its block");
  } else {
    machine->events++;
    for (Fiber* other : b.waiting) machine->make_runnable(other);
    b.waiting.clear();
    yield();
  }
  tsan_acquire(&b);
}

void grid_barrier() {
  const Unwatched guard;
  Fiber* f = machine->running;
  Launch* l = f->block->launch;
  if (!l->cooperative)
    fail(FaultKind::misuse, "PE %d %s: grid barrier in a launch that is not cooperative", f->pe->id,
         l->name.c_str());
  tsan_release(l);
  if (l->at_grid_barrier.size() + 1 < l->grid.count() * l->block.count()) {
    l->at_grid_barrier.push_back(f);
    machine->park(Parked::grid, "barrier of its grid");
  } else {
    machine->events++;
    for (Fiber* other : l->at_grid_barrier) machine->make_runnable(other);
    l->at_grid_barrier.clear();
    yield();
  }
  tsan_acquire(l);
}

std::uint64_t warp_op(std::uint32_t mask, std::uint64_t value, int source, WarpOp op, bool orders) {
  const Unwatched guard;
  Fiber* f = machine->running;
  const unsigned lane = f->at.linear % 32, first = f->at.linear - lane,
                 threads = f->at.block_dim.count() - first;
  if (threads < 32) mask &= (1u << threads) - 1;
  if (!(mask >> lane & 1))
    fail(FaultKind::misuse, "PE %d: lane %u is not in the mask %08x of its warp operation", f->pe->id, lane,
         mask);
  auto& gatherings = f->block->warps[f->at.linear / 32];
  Gathering* g = nullptr;
  for (auto& other : gatherings)
    if (other.mask == mask) g = &other;
  if (!g) {
    gatherings.emplace_back();
    g = &gatherings.back();
    g->mask = mask;
  }
  void* tag = &f->block->warps[f->at.linear / 32];
  if (orders) tsan_release(tag);
  g->arrived |= 1u << lane;
  g->value[lane] = value;
  g->source[lane] = source;
  g->who[lane] = f;
  if (g->arrived != mask) {
    machine->park(Parked::warp, "other lanes of its warp");
  } else {
    for (unsigned i = 0; i < 32; i++) {
      if (!(mask >> i & 1)) continue;
      g->who[i]->result = op(*g, static_cast<int>(i));
      if (i != lane) machine->make_runnable(g->who[i]);
    }
    g->arrived = 0;
  }
  if (orders) tsan_acquire(tag);
  return f->result;
}

Stream* default_stream() {
  return machine->running->pe->streams[0].get();
}

Stream* new_stream() {
  Pe* pe = machine->running->pe;
  pe->streams.push_back(std::make_unique<Stream>());
  pe->streams.back()->pe = pe;
  return pe->streams.back().get();
}

Event* new_event() {
  Pe* pe = machine->running->pe;
  pe->events.push_back(std::make_unique<Event>());
  return pe->events.back().get();
}

static void append(Stream* s, std::function<bool()> work) {
  tsan_release(s->pe);
  s->work.push_back(std::move(work));
  machine->pump(s->pe);
  yield();
}

std::string function_name(const void* function) {
  Dl_info info;
  if (!dladdr(function, &info) || !info.dli_sname) return "kernel";
  int status = 0;
  char* text = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : info.dli_sname;
  std::free(text);
  name = name.substr(
      0, name.find_first_of("<("));  // neither its parameters nor, before a template's name, its type
  return name.substr(name.find_last_of(": ") + 1);
}

void launch(Stream* s, const std::string& name, Dim3 grid, Dim3 block, std::size_t shared_bytes,
            bool cooperative, std::function<void()> body) {
  const Unwatched guard;
  const unsigned limit = machine->config.resident_blocks;
  if (block.count() == 0 || block.count() > 1024 || grid.count() == 0)
    fail(FaultKind::misuse, "launch of %s: %u blocks of %u threads", name.c_str(), grid.count(),
         block.count());
  if (cooperative && limit && grid.count() > limit)
    fail(FaultKind::misuse, "cooperative launch of %s: %u blocks, but only %u run at the same time",
         name.c_str(), grid.count(), limit);
  auto l = std::make_shared<Launch>();
  l->name = name;
  l->grid = grid;
  l->block = block;
  l->shared_bytes = shared_bytes;
  l->cooperative = cooperative;
  l->body = std::move(body);
  machine->stats.launches++;
  append(s, [l, s] { return machine->step(l.get(), s->pe); });
}

void enqueue(Stream* s, std::function<void()> work) {
  const Unwatched guard;
  append(s, [work = std::move(work)] {
    work();
    return true;
  });
}

void record(Stream* s, Event* e) {
  const Unwatched guard;
  const auto turn = ++e->recorded;
  append(s, [e, turn] {
    e->reached = turn;
    return true;
  });
}

void wait(Stream* s, Event* e) {
  const Unwatched guard;
  append(s, [e, turn = e->recorded] { return e->reached >= turn; });
}

void synchronize(Stream* s) {
  const Unwatched guard;
  machine->wait_host("its stream", [s] { return s->work.empty(); });
  tsan_acquire(s->pe);
}

void synchronize_all() {
  const Unwatched guard;
  Pe* pe = machine->running->pe;
  machine->wait_host("its device", [pe] {
    for (auto& s : pe->streams)
      if (!s->work.empty()) return false;
    return true;
  });
  tsan_acquire(pe);
}

}  // namespace emu
