// The part of NVSHMEM that this project uses, on the emulator.
#pragma once
#include "cuda_runtime.h"

enum { NVSHMEM_CMP_EQ = 0, NVSHMEM_CMP_NE, NVSHMEM_CMP_GT, NVSHMEM_CMP_LE, NVSHMEM_CMP_LT, NVSHMEM_CMP_GE };
enum { NVSHMEM_SIGNAL_SET = 9, NVSHMEM_SIGNAL_ADD = 10 };

inline int nvshmem_my_pe() {
  return emu::my_pe();
}
inline int nvshmem_n_pes() {
  return emu::pes();
}
// collective, and a barrier at the end, as the specification says
inline void* nvshmem_malloc(std::size_t bytes) {
  void* p = emu::symmetric_alloc(bytes);
  emu::barrier_all();
  return p;
}
inline void nvshmem_free(void*) {
  emu::barrier_all();
}
inline void nvshmem_barrier_all() {
  emu::barrier_all();
}
inline int nvshmem_uint64_test(std::uint64_t* word, int comparison, std::uint64_t value) {
  return emu::poll(word, comparison, value);
}
