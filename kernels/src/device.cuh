// What every kernel shares: its parameters, the state between launches, and the few things that nvcc and the
// emulator spell differently.
#pragma once
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstddef>
#include <cstdint>

#include "mox/alltoall.h"

#if defined(__CUDACC__)
#define MOX_SHARED_MEMORY(name) extern __shared__ __align__(16) std::byte name[]
#define MOX_UNROLL _Pragma("unroll 4")
#define MOX_UNROLL_ALL _Pragma("unroll")
#define MOX_WAITING_FOR(phase, peer, token) ((void)0)
#else
#define MOX_SHARED_MEMORY(name) std::byte* name = emu::shared_memory()
#define MOX_UNROLL
#define MOX_UNROLL_ALL
#define MOX_WAITING_FOR(phase, peer, token) emu::note(phase, static_cast<int>(peer), token)
#endif

namespace mox {

constexpr std::uint32_t kLanes = 32, kAll = 0xffffffffu;

// Written by one kernel, read by later ones of the same stream: but for `failed`, no kernel reads a word that
// it also writes, so no block needs to know how far the others are.
struct State {
  std::uint64_t sent;      // epochs begun: dispatch_send writes finished + 1
  std::uint64_t finished;  // epochs over: the last kernel of an epoch writes sent
  std::uint32_t tokens;    // that this rank's group holds in this epoch
  std::uint32_t failed;    // a failure has been reported
};

struct Report {
  std::uint32_t valid;  // set after the rest
  Failure failure;
};

struct Common {
  Layout layout;
  std::uint32_t ranks, rank, experts, top_k, dp, hidden, row_align;
  bool self_put;
  std::uint64_t timeout_ns;
  std::byte* symmetric;
  State* state;
  std::uint32_t* offsets;  // [layout.local, ranks] first row of (expert, source), among all rows of this rank
  Report* report;

  template <class T>
  __device__ T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(symmetric + offset);
  }
  __device__ bool on_wire(std::uint32_t to) const { return to != rank || self_put; }
  __device__ std::uint32_t my_experts() const { return experts_at(rank, experts, ranks); }
  __device__ std::uint32_t token_of(std::uint32_t source, std::uint32_t index) const {
    return index * dp + source % dp;
  }
  // the packet of a token; a rank's own never leaves the outbox unless it has to use the wire
  __device__ std::byte* slot(std::uint32_t source, std::uint32_t index) const {
    return symmetric + (on_wire(source) ? layout.inbox_slot(source, index) : layout.outbox_slot(index));
  }
};

__device__ inline std::uint32_t lane_id() {
  return threadIdx.x % kLanes;
}
__device__ inline std::uint32_t warp_in_block() {
  return threadIdx.x / kLanes;
}
__device__ inline std::uint32_t warps_in_block() {
  return blockDim.x / kLanes;
}
__device__ inline std::uint32_t warp_in_grid() {
  return blockIdx.x * warps_in_block() + warp_in_block();
}
__device__ inline std::uint32_t warps_in_grid() {
  return gridDim.x * warps_in_block();
}

__device__ inline std::uint64_t now_ns() {
#if defined(__CUDACC__)
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
#else
  return emu::now_ns();
#endif
}

// NVSHMEM's test ends in a fence of GPU scope, but a peer's stores over NVLink come from another GPU: this
// orders what follows after them. The word only grows, so looking again does no harm.
__device__ inline void acquire([[maybe_unused]] const std::uint64_t* word) {
#if defined(__CUDACC__)
  [[maybe_unused]] std::uint64_t seen;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
#endif
}

// A warp copies `bytes`, a multiple of 16, between 16-byte aligned places.
__device__ inline void copy_by_warp(std::byte* to, const std::byte* from, std::uint32_t bytes) {
  auto* t = reinterpret_cast<uint4*>(to);
  auto* f = reinterpret_cast<const uint4*>(from);
  MOX_UNROLL
  for (std::uint32_t i = lane_id(); i < bytes / 16; i += kLanes) t[i] = f[i];
}

}  // namespace mox
