// The host side: memory, argument checks, launches.
#include "mox/alltoall.h"

#include <string>

#include "combine_recv.cuh"
#include "combine_send.cuh"
#include "dispatch_recv.cuh"
#include "dispatch_send.cuh"

namespace mox {
namespace {

void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(e));
}

void must_be(bool ok, const std::string& what) {
  if (!ok) throw Error(what);
}

// Kernels move rows in pieces of 16 bytes.
void must_be_aligned(const void* p, const char* what) {
  const auto past = reinterpret_cast<std::uintptr_t>(p) % 16;
  must_be(past == 0, std::string(what) + " starts " + std::to_string(past) +
                         " bytes past a multiple of 16, expected an aligned address");
}

// Calls f with a value of the type that t names.
template <class F>
void with_type(DType t, F f) {
  if (t == DType::bf16) return f(Bf16{});
  if (t == DType::fp16) return f(Fp16{});
  f(float{});
}

// The wire carries the combine type, or fp32.
template <class F>
void with_wire_and_out(const Shape& s, F f) {
  with_type(s.combine, [&](auto out) {
    if (s.wire_fp32) return f(float{}, out);
    f(out, out);
  });
}

}  // namespace

AllToAll::AllToAll(const Shape& shape, const Options& options) : shape_(shape), options_(options) {
  const std::string wrong = check(shape);
  must_be(wrong.empty(), "AllToAll: " + wrong);
  const int pes = nvshmem_n_pes();
  must_be(static_cast<int>(shape.ranks) == pes, "AllToAll: ranks is " + std::to_string(shape.ranks) +
                                                    ", but NVSHMEM runs on " + std::to_string(pes) + " PEs");
  must_be(
      options.threads % kLanes == 0 && options.threads >= kLanes && options.threads <= kMaxThreads,
      "AllToAll: threads is " + std::to_string(options.threads) + ", expected a multiple of 32 up to 1024");
  must_be(options.blocks <= kMaxBlocks, "AllToAll: blocks is " + std::to_string(options.blocks) +
                                            ", expected at most " + std::to_string(kMaxBlocks));
  must_be(options.timeout_ms > 0, "AllToAll: timeout_ms is 0, expected at least 1");
  layout_ = layout_of(shape);
  rank_ = static_cast<std::uint32_t>(nvshmem_my_pe());
  if (!options_.blocks) {
    int device, count;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    options_.blocks = static_cast<std::uint32_t>(count);
  }
  symmetric_ = static_cast<std::byte*>(nvshmem_malloc(layout_.bytes));
  must_be(symmetric_, "AllToAll: this shape needs " + std::to_string(layout_.bytes) +
                          " bytes of symmetric memory on every rank, more than is left; set "
                          "NVSHMEM_SYMMETRIC_SIZE to more than the sum of all objects");
  const std::size_t offsets = std::size_t{layout_.local} * shape.ranks * sizeof *offsets_;
  must(cudaMalloc(&state_, sizeof *state_), "cudaMalloc");
  must(cudaMalloc(&offsets_, offsets), "cudaMalloc");
  must(cudaHostAlloc(&report_, sizeof *report_, cudaHostAllocMapped), "cudaHostAlloc");
  *report_ = {};
  must(cudaMemset(state_, 0, sizeof *state_), "cudaMemset");
  must(cudaMemset(offsets_, 0, offsets), "cudaMemset");
  must(cudaMemset(symmetric_, 0, layout_.manifests_out), "cudaMemset");  // the signals
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  nvshmem_barrier_all();  // nobody is signalled before its signals are zero
}

AllToAll::~AllToAll() {
  cudaDeviceSynchronize();
  cudaFreeHost(report_);
  cudaFree(offsets_);
  cudaFree(state_);
  nvshmem_free(symmetric_);
}

std::optional<Failure> AllToAll::failure() const {
  // acquire: hosts other than x86 may read the rest too early
  if (!__atomic_load_n(&report_->valid, __ATOMIC_ACQUIRE)) return std::nullopt;
  return report_->failure;
}

void AllToAll::enter(Half half, const char* name) {
  static constexpr const char* kNames[] = {"dispatch_send", "dispatch_recv", "combine_send", "combine_recv"};
  if (const auto f = failure()) throw Error(std::string(name) + ": an earlier call failed: " + message(*f));
  must_be(half == next_,
          std::string(name) + " is called where " + kNames[static_cast<int>(next_)] + " is next");
  next_ = static_cast<Half>((static_cast<int>(half) + 1) % 4);
}

Common AllToAll::common() const {
  Common c{};
  c.layout = layout_;
  c.ranks = shape_.ranks;
  c.rank = rank_;
  c.experts = shape_.experts;
  c.top_k = shape_.top_k;
  c.dp = shape_.dp;
  c.hidden = shape_.hidden;
  c.row_align = shape_.row_align;
  c.self_put = shape_.self_put;
  c.timeout_ns = std::uint64_t{options_.timeout_ms} * 1000000;
  c.symmetric = symmetric_;
  c.state = state_;
  c.offsets = offsets_;
  c.report = report_;
  return c;
}

template <class Params>
void AllToAll::launch(void (*kernel)(Params), const Params& params, std::size_t shared_bytes,
                      cudaStream_t stream) const {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(options_.blocks);
  config.blockDim = dim3(options_.threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  must(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

void AllToAll::dispatch_send(const DispatchIn& in, cudaStream_t stream) {
  must_be(in.tokens <= shape_.max_tokens, "dispatch_send: tokens is " + std::to_string(in.tokens) +
                                              ", expected at most max_tokens (" +
                                              std::to_string(shape_.max_tokens) + ")");
  must_be(in.tokens == 0 || (in.x && in.experts), "dispatch_send: x and experts are needed");
  must_be(in.tokens == 0 || !layout_.scale_bytes || in.scales, "dispatch_send: fp8 needs scales");
  must_be_aligned(in.x, "dispatch_send: x");
  enter(Half::dispatch_send, "dispatch_send");
  launch(dispatch_send_kernel, DispatchSend{common(), in}, kDispatchSendShared, stream);
}

void AllToAll::dispatch_recv(const DispatchOut& out, cudaStream_t stream) {
  must_be(out.rows && out.counts, "dispatch_recv: rows and counts are needed");
  must_be(!layout_.scale_bytes || out.scales, "dispatch_recv: fp8 needs scales");
  must_be_aligned(out.rows, "dispatch_recv: rows");
  enter(Half::dispatch_recv, "dispatch_recv");
  launch(dispatch_recv_kernel, DispatchRecv{common(), out}, dispatch_recv_shared(layout_, shape_.ranks),
         stream);
}

void AllToAll::combine_send(const void* rows, cudaStream_t stream) {
  must_be(rows, "combine_send: rows are needed");
  must_be_aligned(rows, "combine_send: rows");
  enter(Half::combine_send, "combine_send");
  with_wire_and_out(shape_, [&](auto wire, auto) {
    with_type(shape_.expert_out, [&](auto row) {
      launch(combine_send_kernel<decltype(row), decltype(wire)>, CombineSend{common(), rows},
             combine_send_shared(options_.threads / kLanes), stream);
    });
  });
}

void AllToAll::combine_recv(void* y, cudaStream_t stream) {
  must_be(y, "combine_recv: y is needed");
  must_be_aligned(y, "combine_recv: y");
  enter(Half::combine_recv, "combine_recv");
  with_wire_and_out(shape_, [&](auto wire, auto out) {
    launch(combine_recv_kernel<decltype(wire), decltype(out)>, CombineRecv{common(), y},
           combine_recv_shared(options_.threads / kLanes), stream);
    if (shape_.dp > 1) launch(combine_take_kernel<decltype(out)>, CombineRecv{common(), y}, 0, stream);
  });
}

}  // namespace mox
