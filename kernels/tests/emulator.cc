// The emulator's own tests: toy kernels that are right run through, and each known fault planted in one is
// found.
//
//   emulator        prints one line for each test, exit status 1 when one fails
#include <cooperative_groups.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emu.h"

namespace {

// ---- toy kernels. `fault` is what tests plant.

enum class Fault {
  none,
  no_barrier,       // a put starts before every thread of the block has written
  index_too_early,  // the slot index moves on while slower warps still read it (the published dispatch fault)
  signal_apart,     // data and signal as two operations that nothing orders
  no_wait,          // the receiver does not wait
  reuse,            // the source buffer is written again while its put is in flight
  one_signal,       // SETs of two epochs to one word: the older may land last
  no_ack,           // the sender overwrites what a slow receiver still reads
  peer_behind,  // a member of a group that nobody waits for is an epoch behind (the published combine fault)
};

constexpr unsigned kWords = 64, kTokens = 6;

struct Ring {  // every PE sends kTokens messages to the next one, in each of several epochs
  std::uint64_t *out, *in, *arrived, *acked;
  std::uint64_t* got;  // what the receiver copied: [kTokens, kWords]
  std::uint64_t epoch;
  Fault fault;
};

std::uint64_t word_of(int pe, std::uint64_t epoch, unsigned t, unsigned i) {
  return ((pe * 131 + epoch) * 37 + t) * 1000 + i;
}

__global__ void ring_send(const __grid_constant__ Ring r) {
  auto* next = reinterpret_cast<unsigned*>(emu::shared_memory());
  const int me = nvshmem_my_pe(), to = (me + 1) % nvshmem_n_pes();
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (threadIdx.x == 0) *next = 0;
  if (r.epoch > 1 && r.fault != Fault::no_ack && lane == 0)
    while (!nvshmem_uint64_test(r.acked, NVSHMEM_CMP_GE, r.epoch - 1)) {
    }
  __syncthreads();
  for (unsigned t = 0; t < kTokens; t++) {
    std::uint64_t* message = r.out + (r.fault == Fault::reuse ? 0 : t) * kWords;
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) message[i] = word_of(me, r.epoch, t, i);
    if (r.fault != Fault::no_barrier) __syncthreads();
    if (warp == t % warps) {  // a slow warp may come here late
      const unsigned slot = *next;
      if (r.fault == Fault::signal_apart) {
        nvshmemx_putmem_signal_nbi_warp(r.in + slot * kWords, message, kWords * 8, r.arrived + kTokens, 1,
                                        NVSHMEM_SIGNAL_ADD, to);
        if (lane == 0) nvshmemx_signal_op(r.arrived + slot, r.epoch, NVSHMEM_SIGNAL_SET, to);
      } else {
        nvshmemx_putmem_signal_nbi_warp(r.in + slot * kWords, message, kWords * 8, r.arrived + slot, r.epoch,
                                        NVSHMEM_SIGNAL_SET, to);
      }
    }
    if (r.fault != Fault::index_too_early) __syncthreads();
    if (threadIdx.x == 0) ++*next;
  }
}

__global__ void ring_receive(const __grid_constant__ Ring r) {
  const int from = (nvshmem_my_pe() + nvshmem_n_pes() - 1) % nvshmem_n_pes();
  for (unsigned t = 0; t < kTokens; t++) {
    emu::note("ring", from, t);
    if (r.fault != Fault::no_wait && threadIdx.x == 0)
      while (!nvshmem_uint64_test(r.arrived + t, NVSHMEM_CMP_GE, r.epoch)) {
      }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) r.got[t * kWords + i] = r.in[t * kWords + i];
  }
  __syncthreads();
  if (threadIdx.x == 0) nvshmemx_signal_op(r.acked, r.epoch, NVSHMEM_SIGNAL_SET, from);
}

void ring(int me, Fault fault) {
  const int from = (me + emu::pes() - 1) % emu::pes();
  Ring r{};
  r.fault = fault;
  r.out = static_cast<std::uint64_t*>(nvshmem_malloc(kTokens * kWords * 8));
  r.in = static_cast<std::uint64_t*>(nvshmem_malloc(kTokens * kWords * 8));
  r.arrived = static_cast<std::uint64_t*>(nvshmem_malloc((kTokens + 1) * 8));
  r.acked = static_cast<std::uint64_t*>(nvshmem_malloc(8));
  cudaMemset(r.arrived, 0, (kTokens + 1) * 8);
  cudaMemset(r.acked, 0, 8);
  nvshmem_barrier_all();
  std::vector<std::vector<std::uint64_t>> got(3, std::vector<std::uint64_t>(kTokens * kWords));
  for (r.epoch = 1; r.epoch <= got.size(); r.epoch++) {
    r.got = got[r.epoch - 1].data();
    emu::launch_kernel(emu::default_stream(), "ring_send", ring_send, 1, 96, 4, false, r);
    emu::launch_kernel(emu::default_stream(), "ring_receive", ring_receive, 1, 64, 0, false, r);
  }
  cudaDeviceSynchronize();
  for (std::uint64_t epoch = 1; epoch <= got.size(); epoch++)
    for (unsigned t = 0; t < kTokens; t++)
      for (unsigned i = 0; i < kWords; i++)
        if (got[epoch - 1][t * kWords + i] != word_of(from, epoch, t, i))
          emu::fail(emu::FaultKind::failed, "PE %d: wrong word", me);
  nvshmem_barrier_all();
}

// Everyone tells everyone a number each epoch; nothing else keeps them in step.
struct Gossip {
  std::uint64_t *told, *heard;  // [2, pes] signals
  std::uint64_t epoch;
  Fault fault;
};

__global__ void gossip(const __grid_constant__ Gossip g) {
  const unsigned pes = nvshmem_n_pes(), me = nvshmem_my_pe(),
                 parity = g.fault == Fault::one_signal ? 0 : g.epoch & 1;
  if (threadIdx.x < pes) {
    nvshmemx_signal_op(g.told + parity * pes + me, g.epoch, NVSHMEM_SIGNAL_SET, threadIdx.x);
    // hearing from a PE does not say that it has heard: two epochs may be in flight, but never three
    while (!nvshmem_uint64_test(g.told + parity * pes + threadIdx.x, NVSHMEM_CMP_GE, g.epoch)) {
    }
  }
}

void gossip_host(int, Fault fault) {
  Gossip g{};
  g.fault = fault;
  const std::size_t bytes = 2 * 8 * emu::pes();
  g.told = static_cast<std::uint64_t*>(nvshmem_malloc(bytes));
  cudaMemset(g.told, 0, bytes);
  nvshmem_barrier_all();
  for (g.epoch = 1; g.epoch <= 6; g.epoch++)
    emu::launch_kernel(emu::default_stream(), "gossip", gossip, 1, 32, 0, false, g);
  cudaDeviceSynchronize();
  nvshmem_barrier_all();
}

// A leader hands a value to the members of its group each epoch. It hears of all but the last, unless that is
// told.
struct Group {
  std::uint64_t *value, *stage, *there, *done;  // [1], [2], [1], [pes]
  std::uint64_t* got;
  std::uint64_t epoch;
  Fault fault;
};

__global__ void group_step(const __grid_constant__ Group g) {
  const unsigned pes = nvshmem_n_pes(), me = nvshmem_my_pe(), lane = threadIdx.x;
  if (me == 0) {
    const unsigned heard = g.fault == Fault::peer_behind ? pes - 1 : pes;
    if (lane >= 1 && lane < heard)
      while (!nvshmem_uint64_test(g.done + lane, NVSHMEM_CMP_GE, g.epoch - 1)) {
      }
    __syncwarp();
    std::uint64_t* stage = g.stage + 2 * g.epoch;
    if (lane < 2) stage[lane] = g.epoch * 100;
    __syncwarp();
    for (unsigned p = 1; p < pes; p++)
      nvshmemx_putmem_signal_nbi_warp(g.value, stage, 16, g.there, g.epoch, NVSHMEM_SIGNAL_SET, p);
  } else {
    if (lane == 0)
      while (!nvshmem_uint64_test(g.there, NVSHMEM_CMP_GE, g.epoch)) {
      }
    __syncwarp();
    if (lane < 2) g.got[lane] = g.value[lane];
    __syncwarp();
    if (lane == 0) nvshmemx_signal_op(g.done + me, g.epoch, NVSHMEM_SIGNAL_SET, 0);
  }
}

void group_host(int me, Fault fault) {
  Group g{};
  g.fault = fault;
  auto words = [](std::size_t n) {
    auto* p = static_cast<std::uint64_t*>(nvshmem_malloc(n * 8));
    cudaMemset(p, 0, n * 8);
    return p;
  };
  g.value = words(2), g.stage = words(16), g.there = words(1), g.done = words(emu::pes());
  nvshmem_barrier_all();
  std::uint64_t got[5][2] = {};
  for (g.epoch = 1; g.epoch <= 4; g.epoch++) {
    g.got = got[g.epoch];
    emu::launch_kernel(emu::default_stream(), "group_step", group_step, 1, 32, 0, false, g);
  }
  cudaDeviceSynchronize();
  for (std::uint64_t e = 1; me && e <= 4; e++)
    for (int i = 0; i < 2; i++)
      if (got[e][i] != e * 100)
        emu::fail(emu::FaultKind::failed, "PE %d epoch %lu: value of another epoch", me, e);
  nvshmem_barrier_all();
}

// ---- plumbing

using Host = void (*)(int, Fault);

std::optional<emu::Fault> try_seed(std::uint64_t seed, Host host, Fault fault, emu::Config c = {}) {
  c.seed = seed;
  c.heap_bytes = 1 << 20;
  if (seed % 3 == 1) c.peer_percent = 60;
  if (seed % 4 == 1) c.lazy_percent = 60;
  try {
    emu::run(c, [&](int pe) { host(pe, fault); });
  } catch (const emu::Fault& f) {
    return f;
  }
  return std::nullopt;
}

int failures = 0;

void report(const std::string& name, bool ok, const std::string& what) {
  std::printf("%s %s: %s\n", ok ? "ok  " : "FAIL", name.c_str(), what.c_str());
  failures += !ok;
}

void sound(const char* name, Host host) {
  constexpr int kSeeds = 60;
  for (std::uint64_t seed = 1; seed <= kSeeds; seed++)
    if (const auto f = try_seed(seed, host, Fault::none))
      return report(name, false, "seed " + std::to_string(seed) + ": " + f->what());
  report(name, true, std::to_string(kSeeds) + " seeds without a fault");
}

// kLate: what the network does is the finding, not the check of source buffers
enum Finds { kAnything, kLate };

void planted(const char* name, Host host, Fault fault, std::uint64_t within, Finds finds = kAnything) {
  emu::Config c;
  c.check_source = finds == kAnything;
  for (std::uint64_t seed = 1; seed <= within; seed++)
    if (const auto f = try_seed(seed, host, fault, c)) {
      const std::string text = f->what();
      return report(name, true,
                    "found at seed " + std::to_string(seed) + ": " + text.substr(0, text.find('\n')));
    }
  report(name, false, "not found within " + std::to_string(within) + " seeds");
}

// ---- what the machine promises, one function each; text of the fault, or "" when there was none

std::string fault_of(emu::Config c, const std::function<void(int)>& host) {
  c.heap_bytes = 1 << 20;
  try {
    emu::run(c, host);
  } catch (const emu::Fault& f) {
    return f.what();
  }
  return "";
}

void says(const char* name, const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (text.find(part) == std::string::npos)
      return report(name, false, "expected '" + std::string(part) + "' in: " + text);
  report(name, true, text.substr(0, text.find('\n')));
}

__global__ void waits_for_nobody(std::uint64_t* word) {
  if (threadIdx.x == 3) {
    emu::note("toy", 1, 7);
    while (!nvshmem_uint64_test(word, NVSHMEM_CMP_GE, 5)) {
    }
  }
  __syncthreads();
}
__global__ void half_a_barrier() {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void diverging_barriers() {
  emu::barrier(1, threadIdx.x < 32 ? 32 : 64);
}
__global__ void lonely_lane() {
  if (threadIdx.x == 0) __syncwarp();
}
__global__ void grid_sum(unsigned* cells, unsigned* sums) {
  cells[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x + 1;
  cooperative_groups::this_grid().sync();
  unsigned sum = 0;
  for (unsigned i = 0; i < gridDim.x * blockDim.x; i++) sum += cells[i];
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void warp_things(unsigned* out) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned sum = lane;
  for (unsigned d = 1; d < 32; d *= 2) {
    const unsigned left = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += left;
  }
  bool ok = sum == lane * (lane + 1) / 2;
  ok &= __shfl_sync(~0u, lane + 100 * warp, 5) == 5 + 100 * warp;
  ok &= __ballot_sync(~0u, lane % 3 == 0) == 0x49249249u;
  ok &= __reduce_add_sync(~0u, lane) == 496;
  if (lane < 7) ok &= __ballot_sync(0x7f, lane > 3) == 0x70;  // lanes that diverged
  ok &= !__any_sync(~0u, !ok);
  out[threadIdx.x] = ok;
}
__global__ void count_up(unsigned* n) {
  atomicAdd(n, 1u);
}
__global__ void put_from_private(std::uint64_t* to) {
  std::uint64_t mine[2] = {};
  nvshmemx_putmem_signal_nbi_warp(to, mine, 16, to + 2, 1, NVSHMEM_SIGNAL_SET, 1);
}

template <class K, class... A>
void start(K kernel, unsigned grid, unsigned block, bool cooperative, A... args) {
  emu::launch_kernel(emu::default_stream(), "toy", kernel, grid, block, 0, cooperative, args...);
}

std::string reports_deadlock() {
  return fault_of({}, [](int) {
    auto* w = static_cast<std::uint64_t*>(nvshmem_malloc(8));
    *w = 3;
    start(waits_for_nobody, 1, 64, false, w);
    cudaDeviceSynchronize();
  });
}

std::string runs_right() {  // grid barriers, warp operations, atomics, streams and events
  return fault_of({}, [](int pe) {
    std::vector<unsigned> cells(128), sums(128), warp(96);
    unsigned n = 0, seen = 0;
    start(grid_sum, 4, 32, true, cells.data(), sums.data());
    start(warp_things, 1, 96, false, warp.data());
    for (int i = 0; i < 3; i++) start(count_up, 2, 40, false, &n);
    cudaStream_t other;
    cudaEvent_t event;
    cudaStreamCreate(&other), cudaEventCreate(&event);
    cudaEventRecord(event, nullptr);
    cudaStreamWaitEvent(other, event);
    cudaMemcpyAsync(&seen, &n, 4, cudaMemcpyDefault, other);
    cudaStreamSynchronize(other);
    bool ok = n == 240 && seen == 240;
    for (unsigned s : sums) ok &= s == 32 * (1 + 2 + 3 + 4);
    for (unsigned w : warp) ok &= w;
    ok &= emu::symmetric_alloc(2 << 20) == nullptr;
    if (!ok) emu::fail(emu::FaultKind::failed, "PE %d: wrong result", pe);
  });
}

std::string in_toy(const std::function<void()>& launch, emu::Config c = {}) {
  return fault_of(c, [&](int) {
    launch();
    cudaDeviceSynchronize();
  });
}

void replays() {
  std::vector<emu::Stats> stats;
  for (std::uint64_t seed : {11, 11, 12}) {
    emu::Config c;
    c.seed = seed;
    c.heap_bytes = 1 << 20;
    stats.push_back(emu::run(c, [](int pe) { ring(pe, Fault::none); }));
  }
  const bool same = !std::memcmp(&stats[0], &stats[1], sizeof stats[0]),
             other = std::memcmp(&stats[0], &stats[2], sizeof stats[0]);
  report("a seed repeats a run exactly", same && other,
         std::to_string(stats[0].switches) + " switches twice, " + std::to_string(stats[2].switches) +
             " with another seed");
}

void time_passes() {
  emu::Config c;
  c.time_passes = true;
  const std::string text = fault_of(c, [](int) {
    static std::uint64_t* word;
    word = static_cast<std::uint64_t*>(nvshmem_malloc(8));
    *word = 0;
    const auto begin = emu::now_ns();
    while (!emu::poll(word, NVSHMEM_CMP_GE, 1))
      if (emu::now_ns() - begin > 20'000'000) return;
  });
  report("deadlines expire when nothing moves", text.empty(), text.empty() ? "20 ms passed" : text);
}

}  // namespace

int main() {
  sound("a ring", ring);
  sound("gossip", gossip_host);
  sound("a group", group_host);
  planted("missing barrier", ring, Fault::no_barrier, 10);
  planted("missing barrier, seen by the data", ring, Fault::no_barrier, 10, kLate);
  planted("index moves too early", ring, Fault::index_too_early, 50);
  planted("signal apart from its data", ring, Fault::signal_apart, 10, kLate);
  planted("missing wait", ring, Fault::no_wait, 10);
  planted("early reuse", ring, Fault::reuse, 10);
  planted("early reuse, seen by the data", ring, Fault::reuse, 10, kLate);
  planted("missing acknowledgement", ring, Fault::no_ack, 10, kLate);
  planted("one signal for two epochs", gossip_host, Fault::one_signal, 50);
  planted("a member an epoch behind", group_host, Fault::peer_behind, 50);
  report("barriers, warps, atomics, streams", runs_right().empty(), "as CUDA says");
  says("deadlock report", reports_deadlock(),
       {"PE 0 toy block 0 waits: a signal, phase toy, peer 1, token 7", "holds 3, wanted 5",
        "barrier of its block (63 threads)"});
  says("barrier that not all reach", in_toy([] { start(half_a_barrier, 1, 64, false); }),
       {"deadlock", "barrier of its block (32 threads)"});
  says("barriers that disagree", in_toy([] { start(diverging_barriers, 1, 64, false); }),
       {"calls barrier 1 for"});
  says("warp operation without its lanes", in_toy([] { start(lonely_lane, 1, 32, false); }),
       {"deadlock", "other lanes of its warp"});
  emu::Config two;
  two.resident_blocks = 2;
  says("cooperative launch that does not fit",
       in_toy([] { start(grid_sum, 4, 32, true, nullptr, nullptr); }, two),
       {"4 blocks, but only 2 run at the same time"});
  says("grid barrier without a cooperative launch", in_toy([] {
         static unsigned cells[64], sums[64];
         start(grid_sum, 2, 32, false, &cells[0], &sums[0]);
       }),
       {"not cooperative"});
  says("put from memory that is not symmetric",
       fault_of({},
                [](int) {
                  start(put_from_private, 1, 32, false, static_cast<std::uint64_t*>(nvshmem_malloc(32)));
                  cudaDeviceSynchronize();
                }),
       {"not symmetric"});
  replays();
  time_passes();
  return failures ? 1 : 0;
}
