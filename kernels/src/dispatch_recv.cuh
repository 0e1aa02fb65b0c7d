// Second half of dispatch: counts from the manifests, then every token into its experts' rows, in the order
// (source, token), whatever the order of arrival.
#pragma once
#include "manifest.cuh"
#include "wait.cuh"

namespace mox {

struct DispatchRecv {
  Common c;
  DispatchOut out;
};

// Shared memory: where the rows of (expert, source) begin, the rows of each expert, and whether a manifest is
// missing.
inline std::size_t dispatch_recv_shared(const Layout& l, std::uint32_t ranks) {
  return (std::size_t{l.local} * ranks + 2 * l.local + 2) * 4;
}

__device__ inline bool wait_for_manifests(const Common& c, std::uint64_t epoch, std::uint32_t* missing) {
  if (threadIdx.x == 0) *missing = has_failed(c);
  __syncthreads();
  for (std::uint32_t s = threadIdx.x; s < c.ranks; s += blockDim.x) {
    if (!c.on_wire(s) || is_skipped(c, s)) continue;
    const std::uint32_t parity = planted(Bug::single_signal) ? 0 : epoch & 1;
    if (!wait_for(c, c.at<std::uint64_t>(c.layout.manifest_signal(parity, s, c.ranks)), epoch,
                  Phase::manifest, s, kNoToken))
      atomicExch(missing, 1u);
  }
  __syncthreads();
  return *missing == 0;
}

// Fills offsets [experts, ranks] and counts [experts]; every block does so for itself, from the same bitmaps.
__device__ inline void place_rows(const Common& c, std::uint64_t epoch, std::uint32_t* offsets,
                                  std::uint32_t* counts, std::uint32_t* starts) {
  const std::uint32_t local = c.my_experts();
  for (std::uint32_t i = threadIdx.x; i < local * c.ranks; i += blockDim.x) {
    const std::uint32_t e = i / c.ranks, s = i % c.ranks;
    offsets[i] = is_skipped(c, s) ? 0 : tokens_in(bitmap_of(c, epoch, s, 1 + e), c.layout.words);
  }
  __syncthreads();
  for (std::uint32_t e = warp_in_block(); e < local; e += warps_in_block()) {
    const std::uint32_t n = running_sums(offsets + e * c.ranks, c.ranks, 0);
    if (lane_id() == 0) {
      counts[e] = n;
      starts[e] = c.row_align ? (n + c.row_align - 1) / c.row_align * c.row_align : c.layout.capacity;
    }
  }
  __syncthreads();
  if (warp_in_block() == 0) running_sums(starts, local, 0);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < local * c.ranks; i += blockDim.x) offsets[i] += starts[i / c.ranks];
  __syncthreads();
}

__device__ inline bool rows_fit(const Common& c, std::uint64_t epoch, const std::uint32_t* counts,
                                const std::uint32_t* starts) {
  for (std::uint32_t e = 0; e < c.my_experts(); e++) {
    const std::uint32_t end = counts[e] + (c.row_align ? starts[e] : 0);
    if (counts[e] == 0 || end <= c.layout.capacity) continue;
    if (threadIdx.x == 0) report(c, {Phase::capacity, c.rank, e, kNoToken, epoch, c.layout.capacity, end});
    return false;
  }
  return true;
}

// What the host and combine want to know; by one block.
__device__ inline void publish(const Common& c, const DispatchOut& out, const std::uint32_t* offsets,
                               const std::uint32_t* counts, const std::uint32_t* starts) {
  const std::uint32_t local = c.my_experts();
  for (std::uint32_t e = threadIdx.x; e < local; e += blockDim.x) {
    out.counts[e] = static_cast<std::int32_t>(counts[e]);
    if (out.starts) out.starts[e] = static_cast<std::int32_t>(starts[e]);
  }
  for (std::uint32_t i = threadIdx.x; i < local * c.ranks; i += blockDim.x) c.offsets[i] = offsets[i];
}

// After a failure the experts get nothing to do.
__device__ inline void publish_nothing(const Common& c, const DispatchOut& out) {
  for (std::uint32_t e = threadIdx.x; e < c.my_experts(); e += blockDim.x) {
    out.counts[e] = 0;
    if (out.starts) out.starts[e] = 0;
  }
}

// One token into the rows of those of its experts that live here; by a warp.
__device__ inline void unpack(const Common& c, const DispatchOut& out, std::uint64_t epoch,
                              std::uint32_t source, std::uint32_t index, const std::uint32_t* offsets) {
  const Layout& l = c.layout;
  const std::byte* packet = c.slot(source, index);
  const auto* h = reinterpret_cast<const Header*>(packet);
  const std::uint64_t found = tag_of(h->epoch, h->source, h->index), wanted = tag_of(epoch, source, index);
  if (found != wanted) {
    if (lane_id() == 0)
      report(c, {Phase::header, c.rank, source, c.token_of(source, index), epoch, wanted, found});
    return;
  }
  const std::uint32_t first = first_expert(c.rank, c.experts, c.ranks), groups = l.scale_bytes / 4;
  for (std::uint32_t k = 0; k < c.top_k; k++) {
    const Choice choice = choices_of(h)[k];
    if (choice.rank != c.rank) continue;
    const std::uint32_t e = choice.expert - first;
    const std::uint64_t row =
        offsets[e * c.ranks + source] + tokens_before(bitmap_of(c, epoch, source, 1 + e), index);
    copy_by_warp(static_cast<std::byte*>(out.rows) + row * l.payload_bytes, packet + l.payload_in_slot(),
                 l.payload_bytes);
    const auto* scales = reinterpret_cast<const float*>(packet + l.scales_in_slot());
    for (std::uint32_t i = lane_id(); i < groups; i += kLanes) out.scales[row * groups + i] = scales[i];
    if (out.row_source && lane_id() == 0) {
      out.row_source[2 * row] = static_cast<std::int32_t>(source);
      out.row_source[2 * row + 1] = static_cast<std::int32_t>(c.token_of(source, index));
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads) dispatch_recv_kernel(const __grid_constant__ DispatchRecv p) {
  MOX_SHARED_MEMORY(shared);
  const Common& c = p.c;
  const std::uint64_t epoch = c.state->sent;
  auto* missing = reinterpret_cast<std::uint32_t*>(shared);
  std::uint32_t *counts = missing + 2, *starts = counts + c.layout.local, *offsets = starts + c.layout.local;
  const bool known = wait_for_manifests(c, epoch, missing);
  if (known) place_rows(c, epoch, offsets, counts, starts);
  if (!known || !rows_fit(c, epoch, counts, starts)) {
    if (blockIdx.x == 0) publish_nothing(c, p.out);
    return;
  }
  if (blockIdx.x == 0) publish(c, p.out, offsets, counts, starts);
  for (std::uint32_t item = warp_in_grid(); item < c.ranks * c.layout.slots; item += warps_in_grid()) {
    const std::uint32_t source = item % c.ranks, index = item / c.ranks;
    if (!comes_here(c, epoch, source, index)) continue;
    if (c.on_wire(source) && !planted(Bug::missing_wait) &&
        !warp_waits_for(c, c.at<std::uint64_t>(c.layout.packet_signal(source, index)), epoch, Phase::packet,
                        source, c.token_of(source, index)))
      return;
    unpack(c, p.out, epoch, source, index, offsets);
  }
}

}  // namespace mox
