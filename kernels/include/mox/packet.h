// What travels for one token: [header][payload][scales]. It is written once, by its source.
//
// A reader finds the payload through Layout::header_bytes, so that a header may grow (a relaying multicast
// appends the edges of the token's tree), and the rest of the slot through Layout as well.
#pragma once
#include <cstdint>

#include "mox/portable.h"

namespace mox {

struct Header {
  std::uint32_t epoch;
  std::uint32_t index;  // of the token among those that its source sends
  std::uint16_t source;
  std::uint16_t top_k;
  std::uint32_t padding;
  // then, for each of top_k choices: float weight; uint16_t expert; uint16_t rank (its home), kNobody where
  // there is none
};
static_assert(sizeof(Header) == 16);

struct Choice {
  float weight;
  std::uint16_t expert;
  std::uint16_t rank;
};
static_assert(sizeof(Choice) == 8);
constexpr std::uint16_t kNobody = 0xffff;

MOX_HD inline Choice* choices_of(Header* h) {
  return reinterpret_cast<Choice*>(h + 1);
}
MOX_HD inline const Choice* choices_of(const Header* h) {
  return reinterpret_cast<const Choice*>(h + 1);
}

// Tells packets apart: a slot that holds another one than was waited for is noticed. 20 bits of the epoch, 16
// of the source, 28 of the index.
MOX_HD inline std::uint64_t tag_of(std::uint64_t epoch, std::uint32_t source, std::uint32_t index) {
  return (epoch & 0xfffff) << 44 | std::uint64_t{source} << 28 | index;
}

// Is choice k the first that goes to its rank? One packet is sent, and one partial sum returned, per such
// choice.
MOX_HD inline bool is_first_to_rank(const Choice* choices, std::uint32_t k) {
  if (choices[k].rank == kNobody) return false;
  for (std::uint32_t j = 0; j < k; j++)
    if (choices[j].rank == choices[k].rank) return false;
  return true;
}

// Place of a rank among the ranks that a token goes to, in ascending order: partial sums are added in this
// order.
MOX_HD inline std::uint32_t place_of_rank(const Choice* choices, std::uint32_t top_k, std::uint32_t rank) {
  std::uint32_t below = 0;
  for (std::uint32_t k = 0; k < top_k; k++) below += choices[k].rank < rank && is_first_to_rank(choices, k);
  return below;
}

}  // namespace mox
