// Toy kernels and the host programs that run them, on the emulator alone: each is right, unless a fault is
// planted in it.
#pragma once
#include <nvshmem.h>
#include <nvshmemx.h>

#include <vector>

#include "emu.h"

namespace toys {

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

inline std::uint64_t word_of(int pe, std::uint64_t epoch, unsigned t, unsigned i) {
  return ((pe * 131 + epoch) * 37 + t) * 1000 + i;
}

__global__ inline void ring_send(const __grid_constant__ Ring r) {
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

__global__ inline void ring_receive(const __grid_constant__ Ring r) {
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

inline void ring(int me, Fault fault) {
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

__global__ inline void gossip(const __grid_constant__ Gossip g) {
  const unsigned pes = nvshmem_n_pes(), me = nvshmem_my_pe(),
                 parity = g.fault == Fault::one_signal ? 0 : g.epoch & 1;
  if (threadIdx.x < pes) {
    nvshmemx_signal_op(g.told + parity * pes + me, g.epoch, NVSHMEM_SIGNAL_SET, threadIdx.x);
    // hearing from a PE does not say that it has heard: two epochs may be in flight, but never three
    while (!nvshmem_uint64_test(g.told + parity * pes + threadIdx.x, NVSHMEM_CMP_GE, g.epoch)) {
    }
  }
}

inline void gossip_host(int, Fault fault) {
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

__global__ inline void group_step(const __grid_constant__ Group g) {
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

inline void group_host(int me, Fault fault) {
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

}  // namespace toys
