// Symmetric heaps and the network between them. A put is late, in pieces, and ordered only before its own
// signal.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace emu {
namespace {

enum { kSet = 9, kAdd = 10 };         // NVSHMEM's numbers
constexpr std::size_t kRedZone = 64;  // between allocations: AddressSanitizer sees who runs over

bool compare(std::uint64_t a, int how, std::uint64_t b) {
  switch (how) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a > b;
    case 3: return a <= b;
    case 4: return a < b;
    case 5: return a >= b;
    default: fail(FaultKind::misuse, "comparison %d is none of NVSHMEM's", how);
  }
}

std::vector<std::byte*> heaps;  // mappings are kept between runs; what was used is overwritten at allocation

}  // namespace

std::byte* new_heap(std::size_t bytes) {
  std::byte* heap;
  static std::size_t size = 0;
  if (size != bytes) {
    for (auto* old : heaps) munmap(old, size);
    heaps.clear();
    size = bytes;
  }
  if (!heaps.empty()) {
    heap = heaps.back();
    heaps.pop_back();
  } else {
    void* m =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) throw std::bad_alloc();
    heap = static_cast<std::byte*>(m);
  }
  ASAN_POISON_MEMORY_REGION(heap, bytes);
  return heap;
}

void free_heap(Pe& pe, [[maybe_unused]] std::size_t bytes) {
  if (!pe.heap) return;
#if defined(EMU_TSAN)
  munmap(pe.heap, bytes);  // forgets who touched it
#else
  heaps.push_back(pe.heap);
#endif
}

bool is_symmetric(const void* p, std::size_t bytes, const Pe& pe) {
  auto* b = static_cast<const std::byte*>(p);
  return b >= pe.heap && b + bytes <= pe.heap + pe.used;
}

int my_pe() {
  return machine->running->pe->id;
}
int pes() {
  return machine->config.pes;
}

void* symmetric_alloc(std::size_t bytes) {
  const Unwatched guard;
  Pe& pe = *machine->running->pe;
  const std::size_t rounded = (bytes + 127) / 128 * 128 + kRedZone * 2;
  if (rounded > machine->config.heap_bytes - pe.used) return nullptr;
  std::byte* p = pe.heap + pe.used;
  pe.used += rounded;
  ASAN_UNPOISON_MEMORY_REGION(p, bytes);
  std::memset(p, 0xA5, bytes);  // what was there before, as far as anyone may know
  return p;
}

void barrier_all() {
  const Unwatched guard;
  Pe* pe = machine->running->pe;
  machine->wait_host("its own puts (barrier_all)", [pe] { return pe->issued == pe->completed; });
  const auto turn = ++pe->barriers;
  machine->events++;
  tsan_release(&machine->hosts);
  machine->wake_hosts();
  machine->wait_host("other PEs in barrier_all", [turn] {
    return std::all_of(machine->pes.begin(), machine->pes.end(),
                       [turn](const auto& p) { return p->barriers >= turn; });
  });
  tsan_acquire(&machine->hosts);
}

void Machine::apply_signal(std::uint64_t* word, std::uint64_t value, int op) {
  stats.signals++;
  events++;
  tsan_release(word);
  if (op == kSet) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
  }
  wake_address(word);
}

void Machine::land_fragment(Put& p) {
  const auto k = random() % p.fragments.size();
  const auto [offset, bytes] = p.fragments[k];
  p.fragments[k] = p.fragments.back();
  p.fragments.pop_back();
  stats.fragments++;
  if (config.check_source && std::memcmp(p.from + offset, p.copy.data() + offset, bytes))
    fail(FaultKind::source_reuse,
         "PE %d modified the source of a put in flight to PE %d: %zu bytes from heap+%zu to heap+%zu, "
         "changed near byte %u",
         p.from_pe, p.to_pe, p.copy.size(), static_cast<std::size_t>(p.from - pes[p.from_pe]->heap),
         static_cast<std::size_t>(p.to - pes[p.to_pe]->heap), offset);
  std::memcpy(p.to + offset, p.from + offset, bytes);
}

// The next fragment of a put lands, and its signal with the last one; true when it is complete.
bool Machine::advance(Put& p) {
  tsan_change(p.tsan);
  tsan_acquire(&p.issue);
  if (!p.fragments.empty()) land_fragment(p);
  const bool complete = p.fragments.empty();
  if (complete && p.signal) apply_signal(p.signal, p.value, p.op);
  tsan_change(running ? running->context.tsan : scheduler.tsan);
  return complete;
}

void Machine::deliver() {
  const auto i = random() % network.size();
  Put& p = *network[i];
  if ((p.lazy && !runnable.empty()) || !advance(p)) return;
  auto& from = *pes[p.from_pe];
  if (++from.completed == from.issued) wake_hosts();
  tsan_destroy(p.tsan);
  network[i] = std::move(network.back());
  network.pop_back();
}

bool Machine::is_lost(int from, int to) {
  return from == config.cut_from && to == config.cut_to && over_cut_link++ >= config.cut_after;
}

void Machine::send(std::unique_ptr<Put> p) {
  pes[p->from_pe]->issued++;
  p->lazy = chance(config.lazy_percent);
  network.push_back(std::move(p));
}

static void cut(Put& p,
                std::size_t bytes) {  // into pieces whose ends are multiples of 16, as a network's are
  for (std::uint32_t at = 0; at < bytes;) {
    const auto longest = std::max(16u, machine->config.fragment_bytes);
    auto n = static_cast<std::uint32_t>(16 + machine->random() % longest / 16 * 16);
    n = std::min(n, static_cast<std::uint32_t>(bytes) - at);
    p.fragments.emplace_back(at, n);
    at += n;
  }
}

void put(void* to, const void* from, std::size_t bytes, std::uint64_t* word, std::uint64_t value, int op,
         int pe) {
  const Unwatched guard;
  Machine& m = *machine;
  Pe& mine = *m.running->pe;
  if (pe < 0 || pe >= m.config.pes)
    fail(FaultKind::misuse, "PE %d puts to PE %d of %d", mine.id, pe, m.config.pes);
  if (op != kSet && op != kAdd) fail(FaultKind::misuse, "signal operation %d is neither SET nor ADD", op);
  if (!is_symmetric(to, bytes, mine) || !is_symmetric(from, bytes, mine) ||
      (word && !is_symmetric(word, 8, mine)))
    fail(FaultKind::misuse,
         "PE %d puts %zu bytes to PE %d from, to or with a signal in memory that is not symmetric", mine.id,
         bytes, pe);
  m.events++;
  m.stats.puts++;
  m.stats.put_bytes += bytes;
  if (pe != mine.id) {
    m.stats.remote_puts++;
    m.stats.remote_bytes += bytes;
  }
  if (m.is_lost(mine.id, pe)) return;
  auto p = std::make_unique<Put>();
  p->from_pe = mine.id;
  p->to_pe = pe;
  p->from = static_cast<const std::byte*>(from);
  p->to = on_peer(static_cast<std::byte*>(to), pe);
  p->copy.assign(p->from, p->from + bytes);
  p->signal = word ? on_peer(word, pe) : nullptr;
  p->value = value;
  p->op = op;
  cut(*p, bytes);
  p->tsan = tsan_create();
  tsan_release(&p->issue);
  if (!m.peer[mine.id][pe]) {
    m.send(std::move(p));
    return;
  }
  while (!m.advance(*p)) yield();  // stores of the calling warp, in any order; others run between them
  tsan_destroy(p->tsan);
}

void signal(std::uint64_t* word, std::uint64_t value, int op, int pe) {
  const Unwatched guard;
  put(word, word, 0, word, value, op, pe);
  machine->stats.puts--;
  if (pe != my_pe()) machine->stats.remote_puts--;
  yield();
}

bool poll(std::uint64_t* address, int comparison, std::uint64_t value) {
  const Unwatched guard;
  Machine& m = *machine;
  yield();
  const auto holds = [&] { return compare(__atomic_load_n(address, __ATOMIC_RELAXED), comparison, value); };
  if (!holds()) {
    // looking again before anybody has signalled would see the same
    Fiber* f = m.running;
    f->address = address;
    f->want = value;
    f->poll_slot = m.polling.size();
    m.polling.push_back(f);
    m.by_address[address].push_back(f);
    m.park(Parked::memory, "a signal");
  }
  if (!holds()) return false;
  tsan_acquire(address);
  return true;
}

}  // namespace emu
