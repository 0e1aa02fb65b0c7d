// Second half of combine: partial sums are added in the order of the ranks they come from, whatever the order
// of arrival. With groups of replicated tokens the result then goes to the other members, who take it in a
// kernel of their own: this one waits only for combine_send, so none of the two waits for a block that may
// not have started.
#pragma once
#include "vector.cuh"
#include "bugs.h"
#include "wait.cuh"

namespace mox {

struct CombineRecv {
  Common c;
  void* y;
};

struct Parts {  // ranks that one token went to, in ascending order; one per warp
  std::uint32_t rank[kMaxTopK];
};
inline std::size_t combine_recv_shared(std::uint32_t warps) {
  return warps * sizeof(Parts);
}

__device__ inline std::uint32_t list_parts(const Common& c, const Choice* choices, Parts* parts) {
  const std::uint32_t k = lane_id();
  const bool first = k < c.top_k && is_first_to_rank(choices, k);
  if (first) parts->rank[place_of_rank(choices, c.top_k, choices[k].rank)] = choices[k].rank;
  __syncwarp();
  return __popc(__ballot_sync(kAll, first));
}

__device__ inline bool wait_for_parts(const Common& c, std::uint64_t epoch, std::uint32_t index,
                                      const Parts* parts, std::uint32_t count) {
  bool there = true;
  const std::uint32_t j = lane_id();
  if (j < count && c.on_wire(parts->rank[j]) && !planted(Bug::missing_part))
    there = wait_for(c, c.at<std::uint64_t>(c.layout.partial_signal(index, j)), epoch, Phase::partial,
                     parts->rank[j], c.token_of(c.rank, index));
  const bool all = !__any_sync(kAll, !there);
  __syncwarp();  // a vote orders no memory; nor does anyone write the next list before this one has been read
  return all;
}

template <class Wire, class Out>
__device__ void sum_parts(const Common& c, std::uint32_t index, std::uint32_t count, Out* y) {
  MOX_UNROLL
  for (std::uint32_t i = lane_id(); i < c.hidden / kVector; i += kLanes) {
    Vector sum{};
    for (std::uint32_t j = 0; j < count; j++) {
      const Vector x = load(c.at<const Wire>(c.layout.partial(index, j)) + i * kVector);
      for (std::uint32_t d = 0; d < kVector; d++) sum.v[d] += x.v[d];
    }
    store(y + i * kVector, sum);
  }
}

// To the other members of the group; by a warp, which has just written y.
template <class Out>
__device__ void spread(const Common& c, std::uint64_t epoch, std::uint32_t index, const Out* y) {
  const Layout& l = c.layout;
  const std::uint32_t t = c.token_of(c.rank, index), leader = c.rank / c.dp * c.dp;
  auto* staged = c.at<Out>(l.result_out(index));
  for (std::uint32_t i = lane_id(); i < c.hidden; i += kLanes) staged[i] = y[i];
  __syncwarp();
  for (std::uint32_t m = leader; m < leader + c.dp; m++)
    if (m != c.rank)
      nvshmemx_putmem_signal_nbi_warp(c.at<std::byte>(l.result(t)), staged, l.result_bytes,
                                      c.at<std::uint64_t>(l.result_signal(t)), epoch, NVSHMEM_SIGNAL_SET,
                                      static_cast<int>(m));
}

template <class Wire, class Out>
__global__ void __launch_bounds__(kMaxThreads) combine_recv_kernel(const __grid_constant__ CombineRecv p) {
  MOX_SHARED_MEMORY(shared);
  const Common& c = p.c;
  const std::uint64_t epoch = c.state->sent;
  Parts* parts = reinterpret_cast<Parts*>(shared) + warp_in_block();
  if (c.dp == 1 && blockIdx.x == 0 && threadIdx.x == 0) c.state->finished = epoch;
  if (warp_has_failed(c)) return;
  const std::uint32_t mine = tokens_sent_by(c.rank, c.state->tokens, c.dp);
  for (std::uint32_t index = warp_in_grid(); index < mine; index += warps_in_grid()) {
    const Choice* choices = choices_of(c.at<const Header>(c.layout.outbox_slot(index)));
    const std::uint32_t count = list_parts(c, choices, parts);
    if (!wait_for_parts(c, epoch, index, parts, count)) return;
    Out* y = static_cast<Out*>(p.y) + std::uint64_t{c.token_of(c.rank, index)} * c.hidden;
    sum_parts<Wire>(c, index, count, y);
    __syncwarp();
    if (c.dp > 1) spread(c, epoch, index, y);
  }
}

// Rows that other members of the group have combined.
template <class Out>
__global__ void __launch_bounds__(kMaxThreads) combine_take_kernel(const __grid_constant__ CombineRecv p) {
  const Common& c = p.c;
  const std::uint64_t epoch = c.state->sent;
  if (blockIdx.x == 0 && threadIdx.x == 0) c.state->finished = epoch;
  if (warp_has_failed(c)) return;
  for (std::uint32_t t = warp_in_grid(); t < c.state->tokens; t += warps_in_grid()) {
    const std::uint32_t by = c.rank / c.dp * c.dp + t % c.dp;
    if (by == c.rank) continue;
    if (!planted(Bug::missing_result) &&
        !warp_waits_for(c, c.at<std::uint64_t>(c.layout.result_signal(t)), epoch, Phase::result, by, t))
      return;
    const Out* result = c.at<const Out>(c.layout.result(t));
    Out* y = static_cast<Out*>(p.y) + std::uint64_t{t} * c.hidden;
    MOX_UNROLL
    for (std::uint32_t i = lane_id(); i < c.hidden / kVector; i += kLanes)
      store(y + i * kVector, load(result + i * kVector));
  }
}

}  // namespace mox
