// The four halves of dispatch and combine. See ../../README.md for the protocol.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "mox/failure.h"
#include "mox/layout.h"
#include "mox/shape.h"

namespace mox {

struct DispatchIn {
  const void* x = nullptr;        // [tokens, hidden]; it and all rows start at a multiple of 16 bytes
  const float* scales = nullptr;  // [tokens, ceil(hidden / 128)], fp8 only
  const void* experts = nullptr;  // [tokens, top_k] int32 or int64; negative: no expert
  bool experts_are_int64 = false;
  const float* weights = nullptr;  // [tokens, top_k]; null: 1
  std::uint32_t tokens = 0;
  const std::int32_t* bound_m = nullptr;  // on the device; null, or min(tokens, *bound_m) tokens are sent
};

struct DispatchOut {
  void* rows = nullptr;                // [local experts, capacity, hidden] padded, [capacity, hidden] packed
  float* scales = nullptr;             // the same rows x ceil(hidden / 128), fp8 only
  std::int32_t* counts = nullptr;      // [local experts] rows of each
  std::int32_t* starts = nullptr;      // [local experts] first row of each; may be null
  std::int32_t* row_source = nullptr;  // [rows, 2] rank and token that a row came from; may be null
};

struct Options {
  std::uint32_t timeout_ms = 10000;  // of every wait
  std::uint32_t blocks = 0;          // of every launch, at most kMaxBlocks; 0: one per multiprocessor
  std::uint32_t threads = 512;       // of a block, a multiple of 32, at most kMaxThreads
};

struct State;  // what the kernels of one object keep between launches

// Collective: every rank makes the same objects in the same order, and takes part in every epoch, with 0
// tokens if it has none. The halves of an epoch are called in the order below, on one stream or on streams
// that events order so. None of them synchronises with the host: all can be captured into a CUDA graph.
// Errors in arguments throw mox::Error; what goes wrong on the device is found in failure(), and every later
// call throws it.
class AllToAll {
 public:
  explicit AllToAll(const Shape&, const Options& = {});
  ~AllToAll();
  AllToAll(const AllToAll&) = delete;
  AllToAll& operator=(const AllToAll&) = delete;

  void dispatch_send(const DispatchIn&, cudaStream_t);  // waits for nobody
  void dispatch_recv(const DispatchOut&, cudaStream_t);
  void combine_send(const void* rows, cudaStream_t);  // expert outputs, laid out as dispatch_recv's rows
  void combine_recv(void* y, cudaStream_t);           // [tokens, hidden], on every member of the group

  std::optional<Failure> failure() const;  // of a kernel that has run; does not synchronise
  const Shape& shape() const { return shape_; }
  const Layout& layout() const { return layout_; }
  std::uint32_t rank() const { return rank_; }

 private:
  enum class Half : std::uint8_t { dispatch_send, dispatch_recv, combine_send, combine_recv };
  void enter(Half, const char* name);
  struct Common common() const;
  template <class Params>
  void launch(void (*kernel)(Params), const Params&, std::size_t shared_bytes, cudaStream_t) const;

  Shape shape_;
  Options options_;
  Layout layout_;
  std::uint32_t rank_ = 0;
  Half next_ = Half::dispatch_send;
  std::byte* symmetric_ = nullptr;
  State* state_ = nullptr;            // on the device
  std::uint32_t* offsets_ = nullptr;  // on the device: where the rows of (expert, source) begin
  struct Report* report_ = nullptr;   // on the host, written by the device
};

}  // namespace mox
