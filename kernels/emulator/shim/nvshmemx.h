#pragma once
#include "nvshmem.h"

inline void nvshmemx_putmem_signal_nbi_warp(void* to, const void* from, std::size_t bytes,
                                            std::uint64_t* signal, std::uint64_t value, int op, int pe) {
  __syncwarp();
  if (emu::here->linear % 32 == 0) emu::put(to, from, bytes, signal, value, op, pe);
  __syncwarp();
}
inline void nvshmemx_signal_op(std::uint64_t* signal, std::uint64_t value, int op, int pe) {
  emu::signal(signal, value, op, pe);
}
