// Every offset of the symmetric memory, for one shape. Nothing else in the project computes one.
#pragma once
#include <cstdint>
#include <string>

#include "mox/packet.h"
#include "mox/shape.h"

namespace mox {

struct Layout {
  // sizes
  std::uint32_t slots;     // tokens that one rank sends at most
  std::uint32_t words;     // 32-bit words of a bitmap over them
  std::uint32_t local;     // experts of the rank that has most
  std::uint32_t parts;     // ranks that one token goes to at most
  std::uint32_t capacity;  // rows per expert (padded) or in all (packed)
  std::uint32_t header_bytes, payload_bytes, scale_bytes;
  std::uint32_t packet_bytes;    // what is sent of a slot: header, payload, scales
  std::uint32_t partial_bytes;   // one partial sum on the wire
  std::uint32_t slot_bytes;      // a packet, or its header and a partial sum
  std::uint32_t manifest_bytes;  // bitmaps of one source for one rank: tokens for the rank, then for each of
                                 // its experts
  std::uint32_t result_bytes;    // one combined row
  // offsets
  std::uint64_t manifest_signals;  // [2, ranks] epoch
  std::uint64_t packet_signals;    // [ranks, slots] epoch
  std::uint64_t partial_signals;   // [slots, parts] epoch
  std::uint64_t result_signals;    // [max_tokens] epoch; dp > 1 only, like all results
  std::uint64_t manifests_out;     // [2, ranks] manifests; where signals end
  std::uint64_t manifests;         // [2, ranks] manifests
  std::uint64_t outbox;            // [slots] slots: packets that this rank sends
  std::uint64_t inbox;        // [ranks, slots] slots: packets received; partial sums leave from here as well
  std::uint64_t partials;     // [slots, parts] partial sums received
  std::uint64_t results_out;  // [slots] rows: combined here, for the other members of the group
  std::uint64_t results;      // [max_tokens] rows: combined by other members
  std::uint64_t bytes;        // in all

  MOX_HD std::uint64_t outbox_slot(std::uint32_t index) const {
    return outbox + std::uint64_t{index} * slot_bytes;
  }
  MOX_HD std::uint64_t inbox_slot(std::uint32_t source, std::uint32_t index) const {
    return inbox + (std::uint64_t{source} * slots + index) * slot_bytes;
  }
  MOX_HD std::uint64_t packet_signal(std::uint32_t source, std::uint32_t index) const {
    return packet_signals + (std::uint64_t{source} * slots + index) * 8;
  }
  MOX_HD std::uint64_t partial(std::uint32_t index, std::uint32_t part) const {
    return partials + (std::uint64_t{index} * parts + part) * partial_bytes;
  }
  MOX_HD std::uint64_t partial_signal(std::uint32_t index, std::uint32_t part) const {
    return partial_signals + (std::uint64_t{index} * parts + part) * 8;
  }
  MOX_HD std::uint64_t result_out(std::uint32_t index) const {
    return results_out + std::uint64_t{index} * result_bytes;
  }
  MOX_HD std::uint64_t result(std::uint32_t token) const {
    return results + std::uint64_t{token} * result_bytes;
  }
  MOX_HD std::uint64_t result_signal(std::uint32_t token) const {
    return result_signals + std::uint64_t{token} * 8;
  }
  // within a slot, behind the header: the payload or, on its way back, the partial sum; then the scales
  MOX_HD std::uint32_t payload_in_slot() const { return header_bytes; }
  MOX_HD std::uint32_t scales_in_slot() const { return header_bytes + payload_bytes; }
  // within a manifest, in 32-bit words: bitmap 0 is the rank's, 1 + e that of its expert e
  MOX_HD std::uint32_t bitmap_in_manifest(std::uint32_t row) const { return row * words; }
  // what belongs to one of two successive epochs
  MOX_HD std::uint64_t manifest_out(std::uint32_t parity, std::uint32_t rank, std::uint32_t ranks) const {
    return manifests_out + std::uint64_t{parity * ranks + rank} * manifest_bytes;
  }
  MOX_HD std::uint64_t manifest(std::uint32_t parity, std::uint32_t source, std::uint32_t ranks) const {
    return manifests + std::uint64_t{parity * ranks + source} * manifest_bytes;
  }
  MOX_HD std::uint64_t manifest_signal(std::uint32_t parity, std::uint32_t source,
                                       std::uint32_t ranks) const {
    return manifest_signals + std::uint64_t{parity * ranks + source} * 8;
  }
};

Layout layout_of(const Shape&);  // of a shape that check() accepts

inline std::uint64_t symmetric_bytes(const Shape& s) {
  return layout_of(s).bytes;
}

// Every buffer with its bytes, one line each, and the sum.
std::string describe(const Shape&);

}  // namespace mox
