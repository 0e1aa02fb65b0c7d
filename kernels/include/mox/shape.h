// What every rank agrees on, and where experts live.
#pragma once
#include <cstdint>
#include <string>

#include "mox/dtype.h"

namespace mox {

constexpr std::uint32_t kMaxTopK = 16, kMaxExperts = 1024, kMaxRanks = 4096, kScaleGroup = 128;
// Of a launch. Loops step by all warps of a grid: with so many, 32-bit counters of items cannot wrap around.
constexpr std::uint32_t kMaxThreads = 1024, kMaxBlocks = 65535;

struct Shape {
  std::uint32_t ranks = 1;
  std::uint32_t experts = 1;
  std::uint32_t top_k = 1;
  std::uint32_t max_tokens = 1;    // rows of x on one rank
  std::uint32_t hidden = 8;        // elements of a row
  DType dispatch = DType::bf16;    // of x; fp8 carries one fp32 scale per 128 elements
  DType expert_out = DType::bf16;  // what the experts write: bf16, fp16, fp32
  DType combine = DType::bf16;     // what combine returns: bf16, fp16, fp32
  bool wire_fp32 = false;          // partial sums travel as fp32 instead of the combine dtype
  std::uint32_t dp = 1;  // ranks dp*g ... dp*g+dp-1 hold the same tokens; token t is sent by member t % dp
  std::uint32_t row_capacity = 0;  // rows per expert (padded) or in all (packed); 0: as many as can arrive
  std::uint32_t row_align =
      0;  // 0: padded, expert e starts at row e * capacity; n: packed, starts at multiples of n
  bool self_put = false;  // a rank's own tokens use the wire as well
};

// "" or one line: what was found, what is allowed.
std::string check(const Shape&);

// Experts are dealt out contiguously; the first experts % ranks ranks host one more.
MOX_HD inline std::uint32_t home_of(std::uint32_t expert, std::uint32_t experts, std::uint32_t ranks) {
  const std::uint32_t each = experts / ranks, more = experts % ranks, cut = (each + 1) * more;
  return expert < cut ? expert / (each + 1) : more + (expert - cut) / each;
}
MOX_HD inline std::uint32_t first_expert(std::uint32_t rank, std::uint32_t experts, std::uint32_t ranks) {
  const std::uint32_t each = experts / ranks, more = experts % ranks;
  return rank * each + (rank < more ? rank : more);
}
MOX_HD inline std::uint32_t experts_at(std::uint32_t rank, std::uint32_t experts, std::uint32_t ranks) {
  return experts / ranks + (rank < experts % ranks ? 1 : 0);
}

// Tokens that a rank sends of `tokens` that its group holds: t = index * dp + member.
MOX_HD inline std::uint32_t tokens_sent_by(std::uint32_t rank, std::uint32_t tokens, std::uint32_t dp) {
  const std::uint32_t member = rank % dp;
  return tokens > member ? (tokens - member + dp - 1) / dp : 0;
}

}  // namespace mox
