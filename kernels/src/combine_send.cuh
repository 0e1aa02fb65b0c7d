// First half of combine: for every token received, the weighted sum of its rows here, to the rank that sent
// it. fp32 sums, in the order of the token's choices; one rounding for the wire. Waits for nobody.
#pragma once
#include "manifest.cuh"
#include "vector.cuh"
#include "wait.cuh"

namespace mox {

struct CombineSend {
  Common c;
  const void* rows;
};

struct Terms {  // rows of one token on this rank, with their weights; one per warp
  std::uint32_t count;
  std::uint32_t row[kMaxTopK];
  float weight[kMaxTopK];
};
inline std::size_t combine_send_shared(std::uint32_t warps) {
  return warps * sizeof(Terms);
}

// By a warp; nothing is touched before the packet's header has been validated by dispatch_recv.
__device__ inline void collect(const Common& c, std::uint64_t epoch, std::uint32_t source,
                               std::uint32_t index, const Choice* choices, Terms* terms) {
  const std::uint32_t first = first_expert(c.rank, c.experts, c.ranks);
  std::uint32_t n = 0;
  for (std::uint32_t k = 0; k < c.top_k; k++) {
    if (choices[k].rank != c.rank) continue;
    const std::uint32_t e = choices[k].expert - first;
    const std::uint32_t row =
        c.offsets[e * c.ranks + source] + tokens_before(bitmap_of(c, epoch, source, 1 + e), index);
    if (lane_id() == 0) {
      terms->row[n] = row;
      terms->weight[n] = choices[k].weight;
    }
    n++;
  }
  if (lane_id() == 0) terms->count = n;
  __syncwarp();
}

template <class Row, class Wire>
__device__ void sum_rows(const Common& c, const Row* rows, const Terms& terms, Wire* out) {
  MOX_UNROLL
  for (std::uint32_t i = lane_id(); i < c.hidden / kVector; i += kLanes) {
    Vector sum{};
    for (std::uint32_t j = 0; j < terms.count; j++) {
      const Vector x = load(rows + std::uint64_t{terms.row[j]} * c.hidden + i * kVector);
      for (std::uint32_t d = 0; d < kVector; d++) sum.v[d] = fmaf(terms.weight[j], x.v[d], sum.v[d]);
    }
    store(out + i * kVector, sum);
  }
}

template <class Row, class Wire>
__global__ void __launch_bounds__(kMaxThreads) combine_send_kernel(const __grid_constant__ CombineSend p) {
  MOX_SHARED_MEMORY(shared);
  const Common& c = p.c;
  const Layout& l = c.layout;
  const std::uint64_t epoch = c.state->sent;
  Terms* terms = reinterpret_cast<Terms*>(shared) + warp_in_block();
  if (warp_has_failed(c)) return;  // slots may hold anything
  for (std::uint32_t item = warp_in_grid(); item < c.ranks * l.slots; item += warps_in_grid()) {
    const std::uint32_t source = item % c.ranks, index = item / c.ranks;
    if (!comes_here(c, epoch, source, index)) continue;
    std::byte* slot = c.slot(source, index);
    const Choice* choices = choices_of(reinterpret_cast<const Header*>(slot));
    collect(c, epoch, source, index, choices, terms);
    const std::uint32_t place = place_of_rank(choices, c.top_k, c.rank);
    // the payload has been unpacked: its slot now holds the sum that leaves. A rank's own sum is written in
    // place.
    auto* out = c.on_wire(source) ? slot + l.payload_in_slot() : c.at<std::byte>(l.partial(index, place));
    sum_rows(c, static_cast<const Row*>(p.rows), *terms, reinterpret_cast<Wire*>(out));
    __syncwarp();
    if (c.on_wire(source))
      nvshmemx_putmem_signal_nbi_warp(c.at<std::byte>(l.partial(index, place)), out, l.partial_bytes,
                                      c.at<std::uint64_t>(l.partial_signal(index, place)), epoch,
                                      NVSHMEM_SIGNAL_SET, static_cast<int>(source));
  }
}

}  // namespace mox
