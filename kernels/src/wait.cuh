// Waiting with a deadline, and what is said when it passes.
#pragma once
#include "device.cuh"

namespace mox {

#if defined(__CUDACC__)
constexpr std::uint32_t kPollsPerLook = 64;  // between two looks at the clock, which is slower than the word
#else
constexpr std::uint32_t kPollsPerLook = 1;
#endif

__device__ inline bool has_failed(const Common& c) {
  return *static_cast<volatile const std::uint32_t*>(&c.state->failed) != 0;
}

// The same answer for all lanes, though others may fail meanwhile.
__device__ inline bool warp_has_failed(const Common& c) {
  return __shfl_sync(kAll, has_failed(c), 0);
}

// Keeps the first failure. The report lies in host memory: the flag follows the rest across the bus.
__device__ inline void report(const Common& c, const Failure& f) {
  if (atomicExch(&c.state->failed, 1u)) return;
  c.report->failure = f;
  __threadfence_system();
  *static_cast<volatile std::uint32_t*>(&c.report->valid) = 1;
}

// Waits until *word >= wanted; false when time is up or another wait has failed. What was put before the
// signal is then visible to this thread, and through a barrier of the warp or block to the others.
__device__ inline bool wait_for(const Common& c, std::uint64_t* word, std::uint64_t wanted, Phase phase,
                                std::uint32_t peer, std::uint32_t token) {
  MOX_WAITING_FOR(name_of(phase), peer, token == kNoToken ? -1 : std::int64_t{token});
  std::uint64_t deadline = 0;
  for (std::uint32_t polls = 1;; polls++) {
    if (nvshmem_uint64_test(word, NVSHMEM_CMP_GE, wanted)) {
      acquire(word);
      return true;
    }
    if (polls % kPollsPerLook) continue;
    if (has_failed(c)) return false;
    const std::uint64_t now = now_ns();
    if (deadline == 0) deadline = now + c.timeout_ns;
    if (now < deadline) continue;
    report(c, {phase, c.rank, peer, token, wanted, wanted, *static_cast<volatile std::uint64_t*>(word)});
    return false;
  }
}

// The same for a whole warp: one lane waits, all get the answer and see what arrived.
__device__ inline bool warp_waits_for(const Common& c, std::uint64_t* word, std::uint64_t wanted, Phase phase,
                                      std::uint32_t peer, std::uint32_t token) {
  bool there = false;
  if (lane_id() == 0) there = wait_for(c, word, wanted, phase, peer, token);
  there = __shfl_sync(kAll, there, 0);
  __syncwarp();  // a shuffle orders no memory
  return there;
}

}  // namespace mox
