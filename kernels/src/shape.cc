// Host side of shape.h, layout.h and failure.h: needs neither CUDA nor NVSHMEM.
#include "mox/shape.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "mox/failure.h"
#include "mox/layout.h"

namespace mox {
namespace {

constexpr std::uint64_t kAlign = 128;  // a cache line: no two buffers share one

std::uint32_t round_up(std::uint32_t n, std::uint32_t to) {
  return (n + to - 1) / to * to;
}

std::string range(const char* name, std::uint64_t found, std::uint64_t low, std::uint64_t high) {
  if (found >= low && found <= high) return "";
  return std::string(name) + " is " + std::to_string(found) + ", expected " + std::to_string(low) + " to " +
         std::to_string(high);
}

// What a tag stands for.
std::string packet_of(std::uint64_t tag) {
  return "token " + std::to_string(tag & 0xfffffff) + " of those that rank " +
         std::to_string(tag >> 28 & 0xffff) + " sends in epoch " + std::to_string(tag >> 44);
}

struct Buffer {
  const char* name;
  std::uint64_t Layout::* offset;
  std::uint64_t bytes;
};

template <class Visit>
void each_buffer(const Shape& s, const Layout& l, Visit visit) {
  const std::uint64_t ranks = s.ranks, slots = l.slots, group = s.dp > 1;
  const Buffer buffers[] = {
      // signals first: they alone have to be zero at the start
      {"manifest_signals", &Layout::manifest_signals, 2 * ranks * 8},
      {"packet_signals", &Layout::packet_signals, ranks * slots * 8},
      {"partial_signals", &Layout::partial_signals, slots * l.parts * 8},
      {"result_signals", &Layout::result_signals, group * s.max_tokens * 8},
      {"manifests_out", &Layout::manifests_out, 2 * ranks * l.manifest_bytes},
      {"manifests", &Layout::manifests, 2 * ranks * l.manifest_bytes},
      {"outbox", &Layout::outbox, slots * l.slot_bytes},
      {"inbox", &Layout::inbox, ranks * slots * l.slot_bytes},
      {"partials", &Layout::partials, slots * l.parts * l.partial_bytes},
      {"results_out", &Layout::results_out, group * slots * l.result_bytes},
      {"results", &Layout::results, group * s.max_tokens * l.result_bytes},
  };
  for (const Buffer& b : buffers) visit(b);
}

}  // namespace

std::string check(const Shape& s) {
  for (const std::string& wrong :
       {range("ranks", s.ranks, 1, kMaxRanks), range("experts", s.experts, 1, kMaxExperts),
        range("top_k", s.top_k, 1, kMaxTopK), range("max_tokens", s.max_tokens, 1, 1u << 20),
        range("hidden", s.hidden, 1, 1u << 20), range("dp", s.dp, 1, s.ranks)})
    if (!wrong.empty()) return wrong;
  if (s.ranks % s.dp)
    return "dp is " + std::to_string(s.dp) + ", expected a divisor of ranks (" + std::to_string(s.ranks) +
           ")";
  if (s.top_k > s.experts)
    return "top_k is " + std::to_string(s.top_k) + ", expected at most experts (" +
           std::to_string(s.experts) + ")";
  for (const auto& [name, type] :
       {std::pair{"dispatch", s.dispatch}, {"expert_out", s.expert_out}, {"combine", s.combine}})
    if (const std::string wrong = range(name, static_cast<std::uint64_t>(type), 0, 3); !wrong.empty())
      return wrong + " (bf16, fp16, fp32, fp8)";
  if (s.expert_out == DType::fp8) return "expert_out is fp8, expected bf16, fp16 or fp32";
  if (s.combine == DType::fp8) return "combine is fp8, expected bf16, fp16 or fp32";
  if (s.hidden * bytes_of(s.dispatch) % 16)
    return "a row of hidden (" + std::to_string(s.hidden) + ") elements of " + name_of(s.dispatch) + " has " +
           std::to_string(s.hidden * bytes_of(s.dispatch)) + " bytes, expected a multiple of 16";
  const std::uint64_t arrive = std::uint64_t{s.ranks} * ((s.max_tokens + s.dp - 1) / s.dp);
  if (arrive > 0x7fffffff) return "ranks x tokens is " + std::to_string(arrive) + ", expected less than 2^31";
  if (s.row_align > 65536) return range("row_align", s.row_align, 0, 65536);
  const std::uint64_t per_rank = (s.experts + s.ranks - 1) / s.ranks;
  const std::uint64_t rows =
      s.row_align
          ? (s.row_capacity ? s.row_capacity
                            : arrive * std::min<std::uint64_t>(per_rank, s.top_k) + per_rank * s.row_align)
          : (s.row_capacity ? s.row_capacity : arrive) * per_rank;
  if (rows > 0x7fffffff)
    return "rows on one rank are " + std::to_string(rows) + ", expected fewer than 2^31: lower row_capacity";
  return "";
}

Layout layout_of(const Shape& s) {
  Layout l{};
  l.slots = (s.max_tokens + s.dp - 1) / s.dp;
  l.words = (l.slots + 31) / 32;
  l.local = (s.experts + s.ranks - 1) / s.ranks;
  l.parts = std::min(s.top_k, s.ranks);
  l.capacity = s.row_capacity;
  if (!l.capacity) {
    // a token reaches at most top_k of a rank's experts, and each of them at most once
    const std::uint32_t arrive = s.ranks * l.slots;
    l.capacity = s.row_align ? arrive * std::min(l.local, s.top_k) + l.local * (s.row_align - 1) : arrive;
  }
  l.header_bytes = round_up(sizeof(Header) + s.top_k * sizeof(Choice), 16);
  l.payload_bytes = s.hidden * bytes_of(s.dispatch);
  l.scale_bytes = s.dispatch == DType::fp8 ? round_up(s.hidden, kScaleGroup) / kScaleGroup * 4 : 0;
  l.packet_bytes = round_up(l.header_bytes + l.payload_bytes + l.scale_bytes, 16);
  l.partial_bytes = round_up(s.hidden * (s.wire_fp32 ? 4 : bytes_of(s.combine)), 16);
  l.slot_bytes = std::max(l.packet_bytes, l.header_bytes + l.partial_bytes);
  l.manifest_bytes = round_up((1 + l.local) * l.words * 4, 16);
  l.result_bytes = round_up(s.hidden * bytes_of(s.combine), 16);
  each_buffer(s, l, [&](const Buffer& b) {
    l.*b.offset = l.bytes;
    l.bytes += (b.bytes + kAlign - 1) / kAlign * kAlign;
  });
  return l;
}

std::string describe(const Shape& s) {
  const Layout l = layout_of(s);
  std::string text;
  char line[128];
  each_buffer(s, l, [&](const Buffer& b) {
    std::snprintf(line, sizeof line, "%-17s %15" PRIu64 " bytes at %15" PRIu64 "\n", b.name, b.bytes,
                  l.*b.offset);
    text += line;
  });
  std::snprintf(line, sizeof line, "%-17s %15" PRIu64 " bytes (%.1f MiB) of symmetric memory on every rank\n",
                "in all", l.bytes, static_cast<double>(l.bytes) / (1 << 20));
  return text + line;
}

std::string message(const Failure& f) {
  const std::string where =
      "rank " + std::to_string(f.rank) + ", epoch " + std::to_string(f.epoch) + ", " + name_of(f.phase);
  const std::string peer = std::to_string(f.peer), token = std::to_string(f.token);
  const std::string wanted = std::to_string(f.wanted), found = std::to_string(f.found);
  switch (f.phase) {
    case Phase::capacity:
      return where + ": expert " + peer + " of this rank needs row " + found + ", but there is room for " +
             wanted + ": raise row_capacity";
    case Phase::routing:
      return where + ": token " + token + " names expert " + found + ", expected less than " + wanted;
    case Phase::header:
      return where + ": in the place of token " + token + " from rank " + peer + " lies " +
             packet_of(f.found) + ", expected " + packet_of(f.wanted);
    default: break;
  }
  return where + ": no word from rank " + peer + (f.token == kNoToken ? "" : " for token " + token) +
         " in time; wanted " + wanted + ", found " + found;
}

}  // namespace mox
