// First half of dispatch: manifests to every rank, then every token once to each rank that hosts one of its
// experts. Waits for nobody: what it overwrites has been consumed, by what earlier halves have received
// (README, "Reuse").
#pragma once
#include "manifest.cuh"
#include "wait.cuh"

namespace mox {

struct DispatchSend {
  Common c;
  DispatchIn in;
};

struct Targets {       // ranks that the block's token goes to
  std::uint32_t stop;  // an earlier kernel failed: others may still read what this one would overwrite
  std::uint32_t count;
  std::uint32_t rank[kMaxTopK];
};
constexpr std::size_t kDispatchSendShared = sizeof(Targets);

// Choice k of token t, or -1. An expert that does not exist is reported and left out.
__device__ inline std::int32_t expert_of(const Common& c, const DispatchIn& in, std::uint32_t t,
                                         std::uint32_t k) {
  const std::uint64_t i = std::uint64_t{t} * c.top_k + k;
  const std::int64_t e = in.experts_are_int64 ? static_cast<const std::int64_t*>(in.experts)[i]
                                              : static_cast<const std::int32_t*>(in.experts)[i];
  if (e < static_cast<std::int64_t>(c.experts)) return e < 0 ? -1 : static_cast<std::int32_t>(e);
  report(c, {Phase::routing, c.rank, c.rank, t, c.state->finished + 1, c.experts,
             static_cast<std::uint64_t>(e)});
  return -1;
}

__device__ inline void send_manifest(const Common& c, const DispatchIn& in, std::uint64_t epoch,
                                     std::uint32_t tokens, std::uint32_t to) {
  const Layout& l = c.layout;
  const std::uint32_t parity = manifest_parity(epoch), rows = 1 + experts_at(to, c.experts, c.ranks);
  const auto first = static_cast<std::int32_t>(first_expert(to, c.experts, c.ranks));
  const auto here = c.on_wire(to) ? l.manifest_out(parity, to, c.ranks) : l.manifest(parity, c.rank, c.ranks);
  auto* bitmaps = c.at<std::uint32_t>(here);
  for (std::uint32_t w = warp_in_block(); w < l.words;
       w += warps_in_block()) {  // a warp takes 32 tokens, one per lane
    const std::uint32_t t = c.token_of(c.rank, w * 32 + lane_id());
    std::int32_t local[kMaxTopK];  // the token's experts, counted from the first of this rank
    MOX_UNROLL_ALL
    for (std::uint32_t k = 0; k < kMaxTopK; k++) {
      const std::int32_t e = k < c.top_k && t < tokens ? expert_of(c, in, t, k) : -1;
      local[k] = e < first || e - first >= static_cast<std::int32_t>(rows - 1) ? -1 : e - first;
    }
    for (std::uint32_t row = 0; row < rows; row++) {
      bool goes = false;
      MOX_UNROLL_ALL
      for (std::uint32_t k = 0; k < kMaxTopK; k++)
        goes |= row == 0 ? local[k] >= 0 : local[k] == static_cast<std::int32_t>(row - 1);
      const std::uint32_t bits = __ballot_sync(kAll, goes);
      if (lane_id() == 0) bitmaps[l.bitmap_in_manifest(row) + w] = bits;
    }
  }
  __syncthreads();
  if (warp_in_block() == 0 && c.on_wire(to))
    nvshmemx_putmem_signal_nbi_warp(
        c.at<std::byte>(l.manifest(parity, c.rank, c.ranks)), bitmaps, l.manifest_bytes,
        c.at<std::uint64_t>(l.manifest_signal(planted(Bug::single_signal) ? 0 : epoch & 1, c.rank, c.ranks)),
        epoch, NVSHMEM_SIGNAL_SET, static_cast<int>(to));
}

// One warp writes the header and lists the ranks that the token goes to.
__device__ inline void write_header(const Common& c, const DispatchIn& in, std::uint64_t epoch,
                                    std::uint32_t index, Header* h, Targets* targets) {
  const std::uint32_t t = c.token_of(c.rank, index), k = lane_id();
  Choice* choices = choices_of(h);
  if (k == 0)
    *h = {static_cast<std::uint32_t>(epoch), index, static_cast<std::uint16_t>(c.rank),
          static_cast<std::uint16_t>(c.top_k), 0};
  if (k < c.top_k) {
    const std::int32_t e = expert_of(c, in, t, k);
    const float weight = in.weights ? in.weights[std::uint64_t{t} * c.top_k + k] : 1.0f;
    choices[k] = {e < 0 ? 0.0f : weight, static_cast<std::uint16_t>(e < 0 ? 0 : e),
                  e < 0 ? kNobody : static_cast<std::uint16_t>(home_of(e, c.experts, c.ranks))};
  }
  __syncwarp();
  const bool first = k < c.top_k && is_first_to_rank(choices, k);
  const std::uint32_t firsts = __ballot_sync(kAll, first);
  if (first) targets->rank[__popc(firsts & ((1u << k) - 1))] = choices[k].rank;
  if (k == 0) targets->count = __popc(firsts);
}

__device__ inline void send_packet(const Common& c, const DispatchIn& in, std::uint64_t epoch,
                                   std::uint32_t index, Targets* targets) {
  const Layout& l = c.layout;
  const std::uint32_t t = c.token_of(c.rank, index);
  std::byte* packet = c.at<std::byte>(l.outbox_slot(planted(Bug::early_reuse) ? index % 2 : index));
  auto* payload = reinterpret_cast<uint4*>(packet + l.payload_in_slot());
  auto* scales = reinterpret_cast<float*>(packet + l.scales_in_slot());
  if (warp_in_block() == 0) write_header(c, in, epoch, index, reinterpret_cast<Header*>(packet), targets);
  const auto* x = reinterpret_cast<const uint4*>(static_cast<const std::byte*>(in.x) +
                                                 std::uint64_t{t} * l.payload_bytes);
  for (std::uint32_t i = threadIdx.x; i < l.payload_bytes / 16; i += blockDim.x) payload[i] = x[i];
  const std::uint32_t groups = l.scale_bytes / 4;
  for (std::uint32_t i = threadIdx.x; i < groups; i += blockDim.x)
    scales[i] = in.scales[std::uint64_t{t} * groups + i];
  if (!planted(Bug::missing_barrier)) __syncthreads();  // the packet and the list are complete
  for (std::uint32_t j = warp_in_block(); j < targets->count; j += warps_in_block()) {
    const std::uint32_t to = targets->rank[j];
    if (c.on_wire(to))
      nvshmemx_putmem_signal_nbi_warp(c.at<std::byte>(l.inbox_slot(c.rank, index)), packet, l.packet_bytes,
                                      c.at<std::uint64_t>(l.packet_signal(c.rank, index)), epoch,
                                      NVSHMEM_SIGNAL_SET, static_cast<int>(to));
  }
  if (!planted(Bug::list_too_early)) __syncthreads();  // every warp has read the list
}

__global__ void __launch_bounds__(kMaxThreads) dispatch_send_kernel(const __grid_constant__ DispatchSend p) {
  MOX_SHARED_MEMORY(shared);
  const Common& c = p.c;
  auto* targets = reinterpret_cast<Targets*>(shared);
  if (threadIdx.x == 0) targets->stop = has_failed(c);
  __syncthreads();
  if (targets->stop) return;
  const std::uint64_t epoch = c.state->finished + 1;
  std::uint32_t tokens = p.in.tokens;
  if (p.in.bound_m) {
    const std::int32_t bound = *p.in.bound_m;
    tokens = bound < 0 ? 0 : static_cast<std::uint32_t>(bound) < tokens ? bound : tokens;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    c.state->sent = epoch;
    c.state->tokens = tokens;
  }
  // manifests first: counts are known before the payload is there
  const std::uint32_t items = c.ranks + tokens_sent_by(c.rank, tokens, c.dp);
  for (std::uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    if (item < c.ranks) {
      send_manifest(c, p.in, epoch, tokens, item);
    } else {
      send_packet(c, p.in, epoch, item - c.ranks, targets);
    }
  }
}

}  // namespace mox
