// Four neighbouring elements at once, as fp32. Rows are multiples of 16 bytes of the dispatched type, so of
// four elements of any type.
#pragma once
#include "device.cuh"

namespace mox {

constexpr std::uint32_t kVector = 4;

struct Vector {
  float v[kVector];
};

template <class T>
struct alignas(sizeof(T) * kVector) Packed {  // one load or store
  T v[kVector];
};

template <class T>
__device__ inline Vector load(const T* from) {
  const Packed<T> p = *reinterpret_cast<const Packed<T>*>(from);
  Vector out;
  for (std::uint32_t d = 0; d < kVector; d++) out.v[d] = to_float(p.v[d]);
  return out;
}

template <class T>
__device__ inline void store(T* to, const Vector& x) {
  Packed<T> p;
  for (std::uint32_t d = 0; d < kVector; d++) from_float(x.v[d], p.v[d]);
  *reinterpret_cast<Packed<T>*>(to) = p;
}

}  // namespace mox
