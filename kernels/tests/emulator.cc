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
#include "toys.h"

namespace {

using toys::Fault;

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
    stats.push_back(emu::run(c, [](int pe) { toys::ring(pe, Fault::none); }));
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
  sound("a ring", toys::ring);
  sound("gossip", toys::gossip_host);
  sound("a group", toys::group_host);
  planted("missing barrier", toys::ring, Fault::no_barrier, 10);
  planted("missing barrier, seen by the data", toys::ring, Fault::no_barrier, 10, kLate);
  planted("index moves too early", toys::ring, Fault::index_too_early, 50);
  planted("signal apart from its data", toys::ring, Fault::signal_apart, 10, kLate);
  planted("missing wait", toys::ring, Fault::no_wait, 10);
  planted("early reuse", toys::ring, Fault::reuse, 10);
  planted("early reuse, seen by the data", toys::ring, Fault::reuse, 10, kLate);
  planted("missing acknowledgement", toys::ring, Fault::no_ack, 10, kLate);
  planted("one signal for two epochs", toys::gossip_host, Fault::one_signal, 50);
  planted("a member an epoch behind", toys::group_host, Fault::peer_behind, 50);
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
