// CUDA C++ for g++: what kernels and host code of this project use of cuda_runtime.h, on the emulator.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "../emu.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
using dim3 = emu::Dim3;

// threadIdx and its like are objects, not macros: cudaLaunchConfig_t has members of the same names
namespace emu {
template <Dim3 Position::* Triple, unsigned Dim3::* Axis>
struct Coordinate {
  operator unsigned() const { return (here->*Triple).*Axis; }
};
template <Dim3 Position::* Triple>
struct Coordinates {
  Coordinate<Triple, &Dim3::x> x;
  Coordinate<Triple, &Dim3::y> y;
  Coordinate<Triple, &Dim3::z> z;
};
}  // namespace emu
inline constexpr emu::Coordinates<&emu::Position::thread> threadIdx{};
inline constexpr emu::Coordinates<&emu::Position::block> blockIdx{};
inline constexpr emu::Coordinates<&emu::Position::block_dim> blockDim{};
inline constexpr emu::Coordinates<&emu::Position::grid_dim> gridDim{};

// ---- threads of a block and of a warp
inline void __syncthreads() {
  emu::barrier(0, emu::here->block_dim.count());
}
namespace emu {
template <class T>
std::uint64_t to_bits(T v) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t b = 0;
  std::memcpy(&b, &v, sizeof v);
  return b;
}
template <class T>
T from_bits(std::uint64_t b) {
  T v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}
inline bool has(const WarpGather& g, int lane) {
  return g.mask >> lane & 1;
}
inline std::uint64_t op_none(const WarpGather&, int) {
  return 0;
}
inline std::uint64_t op_shuffle(const WarpGather& g, int lane) {
  const int from = g.source[lane] & 31;
  return g.value[has(g, from) ? from : lane];
}
inline std::uint64_t op_ballot(const WarpGather& g, int) {
  std::uint64_t bits = 0;
  for (int i = 0; i < 32; i++)
    if (has(g, i) && g.value[i]) bits |= std::uint64_t{1} << i;
  return bits;
}
inline std::uint64_t op_add(const WarpGather& g, int) {
  std::uint32_t sum = 0;
  for (int i = 0; i < 32; i++)
    if (has(g, i)) sum += static_cast<std::uint32_t>(g.value[i]);
  return sum;
}
}  // namespace emu
inline void __syncwarp(unsigned mask = ~0u) {
  emu::warp_op(mask, 0, 0, emu::op_none, true);
}
template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int = 32) {
  return emu::from_bits<T>(emu::warp_op(mask, emu::to_bits(v), lane, emu::op_shuffle));
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int = 32) {
  const int lane = static_cast<int>(emu::here->linear % 32), by = static_cast<int>(delta);
  return __shfl_sync(mask, v, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool p) {
  return static_cast<unsigned>(emu::warp_op(mask, p, 0, emu::op_ballot));
}
inline int __any_sync(unsigned mask, bool p) {
  return __ballot_sync(mask, p) != 0;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  return static_cast<unsigned>(emu::warp_op(mask, v, 0, emu::op_add));
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}

// ---- atomics: relaxed, as on a GPU, and a point at which others may run
template <class T, class V>
T atomicAdd(T* p, V v) {
  emu::yield();
  return __atomic_fetch_add(p, static_cast<T>(v), __ATOMIC_RELAXED);
}
template <class T, class V>
T atomicExch(T* p, V v) {
  emu::yield();
  T value = static_cast<T>(v);
  T old;
  __atomic_exchange(p, &value, &old, __ATOMIC_RELAXED);
  return old;
}
inline void __threadfence_system() {}

// ---- the runtime's host functions
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum { cudaHostAllocMapped = 2 };
using cudaStream_t = emu::Stream*;
using cudaEvent_t = emu::Event*;
struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : "out of memory";
}
inline emu::Stream* emu_stream(cudaStream_t s) {
  return s ? s : emu::default_stream();
}
inline cudaError_t emu_alloc(void** p, std::size_t n) {
  *p = std::malloc(n ? n : 1);
  if (*p) std::memset(*p, 0xA5, n);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <class T>
cudaError_t cudaMalloc(T** p, std::size_t n) {
  return emu_alloc(reinterpret_cast<void**>(p), n);
}
template <class T>
cudaError_t cudaHostAlloc(T** p, std::size_t n, unsigned) {
  return emu_alloc(reinterpret_cast<void**>(p), n);
}
inline cudaError_t cudaFree(void* p) {
  return std::free(p), cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* p) {
  return std::free(p), cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int v, std::size_t n) {
  return std::memset(p, v, n), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind,
                                   cudaStream_t s) {
  emu::enqueue(emu_stream(s), [=] { std::memcpy(to, from, n); });
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* s) {
  return *s = emu::new_stream(), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  return emu::synchronize(emu_stream(s)), cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
  return emu::synchronize_all(), cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* e) {
  return *e = emu::new_event(), cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return emu::record(emu_stream(s), e), cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0) {
  return emu::wait(emu_stream(s), e), cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  return *device = 0, cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 2, cudaSuccess;
}
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... args) {
  emu::launch_kernel(emu_stream(c->stream), emu::function_name(reinterpret_cast<const void*>(kernel)), kernel,
                     c->gridDim, c->blockDim, c->dynamicSmemBytes, false, args...);
  return cudaSuccess;
}
