// A manifest says, before any packet is there, which tokens of one source go to one rank and to which of its
// experts: bitmaps over the source's tokens, the first for the rank, then one for each of its experts.
// Counts, the order of rows and their places all follow from it.
#pragma once
#include "bugs.h"
#include "device.cuh"

namespace mox {

__device__ inline std::uint32_t manifest_parity(std::uint64_t epoch) {
  return planted(Bug::single_manifest) ? 0 : epoch & 1;
}

// Bitmap `row` of the manifest that `source` has sent to this rank: 0 for the rank, 1 + e for its expert e.
__device__ inline const std::uint32_t* bitmap_of(const Common& c, std::uint64_t epoch, std::uint32_t source,
                                                 std::uint32_t row) {
  return c.at<std::uint32_t>(c.layout.manifest(manifest_parity(epoch), source, c.ranks)) +
         c.layout.bitmap_in_manifest(row);
}

__device__ inline bool has_token(const std::uint32_t* bitmap, std::uint32_t index) {
  return bitmap[index / 32] >> (index % 32) & 1;
}

// A planted fault: which members of the group are taken to have nothing to say.
__device__ inline bool is_skipped(const Common& c, std::uint32_t source) {
  return planted(Bug::peer_behind) && source != c.rank && source / c.dp == c.rank / c.dp &&
         tokens_sent_by(source, c.state->tokens, c.dp) == 0;
}

// Does the token have rows on this rank?
__device__ inline bool comes_here(const Common& c, std::uint64_t epoch, std::uint32_t source,
                                  std::uint32_t index) {
  return !is_skipped(c, source) && has_token(bitmap_of(c, epoch, source, 0), index);
}

// Tokens before `index` in a bitmap; by a whole warp.
__device__ inline std::uint32_t tokens_before(const std::uint32_t* bitmap, std::uint32_t index) {
  std::uint32_t n = 0;
  for (std::uint32_t w = lane_id(); w <= index / 32; w += kLanes) {
    const std::uint32_t word = bitmap[w];
    n += __popc(w < index / 32 ? word : word & ((1u << (index % 32)) - 1));
  }
  return __reduce_add_sync(kAll, n);
}

__device__ inline std::uint32_t tokens_in(const std::uint32_t* bitmap, std::uint32_t words) {
  std::uint32_t n = 0;
  for (std::uint32_t w = 0; w < words; w++) n += __popc(bitmap[w]);
  return n;
}

// Replaces values[0..n) by the sums of those before each, plus `from`; returns the sum of all and `from`. By
// a warp.
__device__ inline std::uint32_t running_sums(std::uint32_t* values, std::uint32_t n, std::uint32_t from) {
  for (std::uint32_t base = 0; base < n; base += kLanes) {
    const std::uint32_t i = base + lane_id(), mine = i < n ? values[i] : 0;
    std::uint32_t sum = mine;
    for (std::uint32_t d = 1; d < kLanes; d *= 2) {
      const std::uint32_t left = __shfl_up_sync(kAll, sum, d);
      if (lane_id() >= d) sum += left;
    }
    if (i < n) values[i] = from + sum - mine;
    from += __shfl_sync(kAll, sum, kLanes - 1);
  }
  return from;
}

}  // namespace mox
