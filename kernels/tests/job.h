// One AllToAll object on one rank of the emulator: feeds it, plays the experts, and compares with the
// reference.
#pragma once
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "case.h"
#include "mox/alltoall.h"
#include "reference.h"

inline constexpr auto kUntouched = std::byte{0xEE};

struct Buffers {  // of one epoch on one rank: all outlive the run, since nothing waits in between
  Input in;
  std::vector<std::int64_t> experts64;
  std::int32_t bound = 0;
  std::vector<std::byte> rows, outputs, y;
  std::vector<float> scales;
  std::vector<std::int32_t> counts, starts, source;
};

struct Job {  // one object on one rank
  const Case& c;
  std::uint32_t number, rank;
  mox::AllToAll all;
  std::vector<std::unique_ptr<Buffers>> epochs;
  cudaStream_t sends = nullptr, receives = nullptr;
  cudaEvent_t event = nullptr;

  Job(const Case& c_, std::uint32_t n, std::uint32_t r)
      : c(c_), number(n), rank(r), all(c_.shape, {10000, c_.blocks, c_.threads}) {
    cudaStreamCreate(&sends);
    receives = sends;
    if (c.two_streams) cudaStreamCreate(&receives);
    cudaEventCreate(&event);
  }

  std::uint64_t row_count() const {
    return c.shape.row_align ? all.layout().capacity
                             : std::uint64_t{all.layout().capacity} * all.layout().local;
  }

  void order(cudaStream_t before, cudaStream_t after) {
    if (c.in_turn) cudaStreamSynchronize(before);
    if (before == after) return;
    cudaEventRecord(event, before);
    cudaStreamWaitEvent(after, event);
  }

  void start(std::uint32_t epoch) {
    const mox::Layout& l = all.layout();
    epochs.push_back(std::make_unique<Buffers>());
    Buffers& b = *epochs.back();
    b.in = draw_input(c, number, epoch, rank / c.shape.dp);
    b.experts64.assign(b.in.experts.begin(), b.in.experts.end());
    b.bound = static_cast<std::int32_t>(b.in.sent);
    const std::uint64_t rows = row_count();
    b.rows.assign(rows * l.payload_bytes, kUntouched);
    b.scales.assign(rows * l.scale_bytes / 4, -1.0f);
    b.outputs.assign(rows * c.shape.hidden * mox::bytes_of(c.shape.expert_out), kUntouched);
    b.y.assign(std::uint64_t{c.shape.max_tokens} * c.shape.hidden * mox::bytes_of(c.shape.combine),
               kUntouched);
    b.counts.assign(l.local, -1);
    b.starts.assign(l.local, -1);
    b.source.assign(2 * rows, -1);

    mox::DispatchIn in;
    in.x = b.in.x.data();
    in.scales = b.in.scales.data();
    in.experts = c.int64 ? static_cast<const void*>(b.experts64.data()) : b.in.experts.data();
    in.experts_are_int64 = c.int64;
    in.weights = c.weighted ? b.in.weights.data() : nullptr;
    in.tokens = b.in.given;
    in.bound_m = c.bounded ? &b.bound : nullptr;
    all.dispatch_send(in, sends);
    order(sends, receives);
    all.dispatch_recv({b.rows.data(), b.scales.data(), b.counts.data(), b.starts.data(), b.source.data()},
                      receives);
    emu::enqueue(receives, [this, &b] { run_experts(b); });
    order(receives, sends);
    all.combine_send(b.outputs.data(), sends);
    order(sends, receives);
    all.combine_recv(b.y.data(), receives);
    order(receives, sends);
  }

  // every expert doubles its rows or leaves them, as the reference does
  void run_experts(Buffers& b) const {
    const mox::Shape& s = c.shape;
    const mox::Layout& l = all.layout();
    const std::uint32_t first = mox::first_expert(rank, s.experts, s.ranks);
    for (std::uint32_t e = 0; e < mox::experts_at(rank, s.experts, s.ranks); e++)
      for (std::int32_t i = 0; i < b.counts[e]; i++) {
        const std::uint64_t row = static_cast<std::uint64_t>(b.starts[e] + i);
        for (std::uint32_t d = 0; d < s.hidden; d++) {
          float v = element(&b.rows[row * l.payload_bytes], s.dispatch, d);
          if (l.scale_bytes) v *= b.scales[row * l.scale_bytes / 4 + d / mox::kScaleGroup];
          store_element(&b.outputs[row * s.hidden * mox::bytes_of(s.expert_out)], s.expert_out, d,
                        v * static_cast<float>(1 + (first + e) % 2));
        }
      }
  }

  template <class... A>
  void expect(bool ok, const char* format, A... args) const {
    char text[256];
    if (ok) return;
    std::snprintf(text, sizeof text, format, args...);
    emu::fail(emu::FaultKind::failed, "rank %u object %u: %s", rank, number, text);
  }

  void check(std::uint32_t epoch, const Reference& ref) const {
    const auto f = all.failure();
    expect(!f || f->epoch > epoch + 1, "failure: %s", f ? mox::message(*f).c_str() : "");
    check_rows(epoch, ref);
    check_sums(epoch, ref);
  }

  void check_rows(std::uint32_t epoch, const Reference& ref) const {
    const mox::Shape& s = c.shape;
    const mox::Layout& l = all.layout();
    const Buffers& b = *epochs[epoch];
    std::vector<bool> used(row_count());
    std::uint32_t start = 0;
    const std::uint32_t first = mox::first_expert(rank, s.experts, s.ranks);
    for (std::uint32_t e = 0; e < mox::experts_at(rank, s.experts, s.ranks); e++) {
      const auto rows = ref.rows(first + e);
      expect(b.counts[e] == static_cast<int>(rows.size()), "epoch %u expert %u: %d rows, expected %zu", epoch,
             e, b.counts[e], rows.size());
      const std::uint32_t at = s.row_align ? start : e * l.capacity;
      expect(b.starts[e] == static_cast<int>(at), "epoch %u expert %u: starts at %d, expected %u", epoch, e,
             b.starts[e], at);
      for (std::size_t i = 0; i < rows.size(); i++) {
        const auto [source, token] = rows[i];
        const Input& in = ref.of(source);
        const std::uint64_t row = at + i;
        used[row] = true;
        expect(
            b.source[2 * row] == static_cast<int>(source) && b.source[2 * row + 1] == static_cast<int>(token),
            "epoch %u expert %u row %zu: from rank %d token %d, expected %u and %u", epoch, e, i,
            b.source[2 * row], b.source[2 * row + 1], source, token);
        expect(!std::memcmp(&b.rows[row * l.payload_bytes], &in.x[std::uint64_t{token} * l.payload_bytes],
                            l.payload_bytes),
               "epoch %u expert %u row %zu (rank %u token %u): wrong payload", epoch, e, i, source, token);
        const std::uint32_t groups = l.scale_bytes / 4;
        expect(!groups || !std::memcmp(&b.scales[row * groups], &in.scales[token * groups], l.scale_bytes),
               "epoch %u expert %u row %zu (rank %u token %u): wrong scales", epoch, e, i, source, token);
      }
      if (s.row_align)
        start += static_cast<std::uint32_t>((rows.size() + s.row_align - 1) / s.row_align * s.row_align);
    }
    for (std::uint64_t row = 0; row < used.size(); row++)
      for (std::uint32_t i = 0; !used[row] && i < l.payload_bytes; i++)
        expect(b.rows[row * l.payload_bytes + i] == kUntouched,
               "epoch %u: row %" PRIu64 " belongs to nobody and was written", epoch, row);
  }

  void check_sums(std::uint32_t epoch, const Reference& ref) const {
    const mox::Shape& s = c.shape;
    const Buffers& b = *epochs[epoch];
    const std::uint64_t row_bytes = std::uint64_t{s.hidden} * mox::bytes_of(s.combine);
    for (std::uint32_t t = 0; t < b.in.sent; t++)
      for (std::uint32_t d = 0; d < s.hidden; d++) {
        const float y = element(&b.y[t * row_bytes], s.combine, d);
        const auto want = ref.combined(b.in, t, d);
        expect(std::fabs(y - want.exact) <= (c.exact ? 0.0 : want.bound),
               "epoch %u token %u element %u: %g, expected %g within %g", epoch, t, d, static_cast<double>(y),
               want.exact, c.exact ? 0.0 : want.bound);
        expect(y == want.value, "epoch %u token %u element %u: %.9g, expected exactly %.9g", epoch, t, d,
               static_cast<double>(y), static_cast<double>(want.value));
      }
    for (std::uint64_t i = b.in.sent * row_bytes; i < b.y.size(); i++)
      expect(b.y[i] == kUntouched, "epoch %u: row %" PRIu64 " of y belongs to no token and was written",
             epoch, i / row_bytes);
  }
};
