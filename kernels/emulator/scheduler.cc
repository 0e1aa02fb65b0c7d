// Who runs next, who is parked, and what to say when nobody can go on.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>

#include "machine.h"

namespace emu {

Machine* machine = nullptr;
const Position* here = nullptr;

namespace {

std::vector<Context> stacks;  // survive a run: mapping them anew would take longer than many a test

void to_scheduler(bool for_good = false) {
  Fiber* f = machine->running;
  change(f->context, machine->scheduler, for_good);
}

void entry() {
  entered();
  Fiber* f = machine->running;
  tsan_acquire(f->order);
  try {
    (*f->body)();
  } catch (const Fault& e) {
    machine->fault = std::make_unique<Fault>(e);
  } catch (const std::exception& e) {
    machine->fault =
        std::make_unique<Fault>(FaultKind::failed, "PE " + std::to_string(f->pe->id) + ": " + e.what());
  }
  tsan_release(f->order);
  f->done = true;
  to_scheduler(true);
  std::abort();
}

std::string format(const char* text, std::va_list args) {
  char line[1024];
  std::vsnprintf(line, sizeof line, text, args);
  return line;
}

}  // namespace

std::uint64_t Machine::random() {  // splitmix64
  std::uint64_t z = (random_state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

Fiber* Machine::spawn(const std::function<void()>* body, Pe* pe, Block* block, void* order) {
  Fiber* f;
  auto& ended = spare[pe->id];  // of the same PE only: TSan takes what a fiber did before as ordered before
  if (!ended.empty()) {
    f = ended.back();
    ended.pop_back();
    Context kept = f->context;
    *f = Fiber{};
    f->context = kept;
  } else {
    fibers.push_back(std::make_unique<Fiber>());
    f = fibers.back().get();
    if (!stacks.empty()) {
      f->context = stacks.back();
      stacks.pop_back();
    }
  }
  f->body = body;
  f->pe = pe;
  f->block = block;
  f->order = order;
  create(f->context, entry, config.stack_bytes);
  make_runnable(f);
  return f;
}

void Machine::make_runnable(Fiber* f) {
  f->parked = Parked::no;
  f->slot = runnable.size();
  runnable.push_back(f);
}

void Machine::park(Parked how, const char* why) {
  Fiber* f = running;
  f->parked = how;
  f->why = why;
  runnable[f->slot] = runnable.back();
  runnable[f->slot]->slot = f->slot;
  runnable.pop_back();
  to_scheduler();
}

void Machine::wait_host(const char* why, std::function<bool()> ready) {
  Fiber* f = running;
  while (!ready()) {
    f->ready = ready;
    idle_hosts.push_back(f);
    park(Parked::host, why);
  }
}

void Machine::wake_hosts() {
  for (std::size_t i = 0; i < idle_hosts.size();) {
    if (idle_hosts[i]->ready()) {
      make_runnable(idle_hosts[i]);
      idle_hosts.erase(idle_hosts.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      i++;
    }
  }
}

void Machine::wake_address(const void* address) {
  auto found = by_address.find(address);
  if (found == by_address.end()) return;
  for (Fiber* f : found->second) {
    polling[f->poll_slot] = polling.back();
    polling[f->poll_slot]->poll_slot = f->poll_slot;
    polling.pop_back();
    make_runnable(f);
  }
  by_address.erase(found);
}

Fiber* Machine::pick() {
  for (int tries = 0;; tries++) {
    Fiber* f = runnable[random() % runnable.size()];
    if (!f->slow || tries == 3) return f;
  }
}

void Machine::resume(Fiber* f) {
  running = f;
  here = &f->at;
  stats.switches++;
  change(scheduler, f->context);
  running = nullptr;
  if (!f->done) return;
  events++;
  runnable[f->slot] = runnable.back();
  runnable[f->slot]->slot = f->slot;
  runnable.pop_back();
  if (f->block) {
    thread_ended(f);
  } else {
    hosts--;
  }
  spare[f->pe->id].push_back(f);
}

// Nothing runs and nothing is in flight. Pollers look once more, since a plain store may have changed what
// they wait for; if that moves nothing, time passes (so that deadlines expire) or the run is over.
void Machine::unstick() {
  wake_hosts();
  if (!runnable.empty()) return;
  if (events != seen_events) stuck_rounds = 0;
  seen_events = events;
  const unsigned limit = config.time_passes ? 100000 : 2;
  if (polling.empty() || stuck_rounds++ == limit)
    throw Fault(FaultKind::deadlock, "deadlock, nothing is in flight:" + who_waits());
  if (config.time_passes) clock_ns += 1000000;
  for (Fiber* f : polling) make_runnable(f);
  polling.clear();
  by_address.clear();
}

void Machine::loop() {
  while (hosts || !network.empty() || !runnable.empty() || !polling.empty()) {
    if (!network.empty() && (runnable.empty() || chance(config.network_percent))) {
      deliver();
    } else if (!runnable.empty()) {
      resume(pick());
      if (fault) throw *fault;
    } else {
      unstick();
    }
  }
  for (const auto& p : pes)
    for (const auto& s : p->streams)
      if (!s->work.empty())
        throw Fault(FaultKind::deadlock, "deadlock after every host program has returned:" + who_waits());
}

std::string Machine::who_waits() const {
  std::map<std::string, unsigned> lines;  // what is waited for -> threads
  for (const auto& f : fibers) {
    if (f->done || f->parked == Parked::no) continue;
    std::string who = "\n  PE " + std::to_string(f->pe->id) + " ";
    who += f->block ? f->block->launch->name + " block " + std::to_string(f->at.block.x) : "host program";
    who += std::string(" waits: ") + f->why;
    if (f->parked == Parked::memory) {
      const auto offset = reinterpret_cast<const std::byte*>(f->address) - f->pe->heap;
      if (f->note.phase) who += std::string(", phase ") + f->note.phase;
      if (f->note.peer >= 0) who += ", peer " + std::to_string(f->note.peer);
      if (f->note.token >= 0) who += ", token " + std::to_string(f->note.token);
      who += ", word at heap+" + std::to_string(offset) + " holds " + std::to_string(*f->address) +
             ", wanted " + std::to_string(f->want);
    }
    lines[who]++;
  }
  std::string text;
  int shown = 0;
  for (const auto& [line, threads] : lines) {
    if (shown++ == 24) return text + "\n  and " + std::to_string(lines.size() - 24) + " more";
    text += line + " (" + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  }
  return text;
}

void fail(FaultKind kind, const char* text, ...) {
  std::va_list args;
  va_start(args, text);
  const std::string line = format(text, args);
  va_end(args);
  if (!machine->running) throw Fault(kind, line);
  machine->fault = std::make_unique<Fault>(kind, line);
  to_scheduler(true);
  std::abort();
}

void yield() {
  const Unwatched guard;
  to_scheduler();
}

void note(const char* phase, int peer, std::int64_t token) {
  const Unwatched guard;
  machine->running->note = {phase, peer, token};
}

std::uint64_t now_ns() {
  return machine->clock_ns;
}

Stats run(const Config& config, const std::function<void(int)>& host) {
  const Unwatched guard;
  Machine m;
  machine = &m;
  m.config = config;
  m.random_state = config.seed * 0x2545F4914F6CDD1Dull + 1;
  adopt(m.scheduler);
  m.spare.resize(config.pes);
  struct Cleanup {
    Machine& m;
    ~Cleanup() {
      for (auto& f : m.fibers) {
#if defined(EMU_TSAN)
        // nor may runs be ordered; after a fault, those that wait inside the emulator cannot be ended
        // properly
        if (f->done) destroy(f->context);
#else
        stacks.push_back(f->context);
#endif
      }
      for (auto& p : m.network) tsan_destroy(p->tsan);
      for (auto& p : m.pes) {
        tsan_acquire(p.get());
        free_heap(*p, m.config.heap_bytes);
      }
      machine = nullptr;
    }
  } cleanup{m};
  m.peer.assign(config.pes, std::vector<bool>(config.pes));
  for (int i = 0; i < config.pes; i++)
    for (int j = 0; j < config.pes; j++) m.peer[i][j] = i == j || m.chance(config.peer_percent);
  std::vector<std::function<void()>> programs;
  for (int i = 0; i < config.pes; i++) {
    m.pes.push_back(std::make_unique<Pe>());
    Pe& p = *m.pes.back();
    p.id = i;
    p.heap = new_heap(config.heap_bytes);
    p.slow = m.chance(config.slow_percent);
    p.streams.push_back(std::make_unique<Stream>());
    p.streams[0]->pe = &p;
    programs.push_back([&host, i] { host(i); });
    tsan_release(&p);
  }
  m.hosts = config.pes;
  for (int i = 0; i < config.pes; i++) m.spawn(&programs[i], m.pes[i].get(), nullptr, m.pes[i].get());
  m.loop();
  return m.stats;
}

}  // namespace emu
