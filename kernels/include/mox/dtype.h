// Number formats as bits, and their conversions to and from fp32 (round to nearest even), on host and device
// alike.
#pragma once
#include <cstdint>
#include <cstring>

#include "mox/portable.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace mox {

enum class DType : std::uint8_t { bf16, fp16, fp32, fp8 };

MOX_HD constexpr std::uint32_t bytes_of(DType t) {
  return t == DType::fp32 ? 4 : t == DType::fp8 ? 1 : 2;
}
constexpr const char* name_of(DType t) {
  return t == DType::bf16 ? "bf16" : t == DType::fp16 ? "fp16" : t == DType::fp32 ? "fp32" : "fp8";
}

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

namespace detail {
MOX_HD inline std::uint32_t bits_of(float f) {
  std::uint32_t b;
  memcpy(&b, &f, sizeof b);
  return b;
}
MOX_HD inline float float_of(std::uint32_t b) {
  float f;
  memcpy(&f, &b, sizeof f);
  return f;
}
}  // namespace detail

MOX_HD inline float to_float(float v) {
  return v;
}
MOX_HD inline float to_float(Bf16 v) {
  return detail::float_of(std::uint32_t{v.bits} << 16);
}
MOX_HD inline float to_float(Fp16 v) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(v.bits));
#else
  const std::uint32_t sign = std::uint32_t{v.bits & 0x8000u} << 16, exponent = v.bits >> 10 & 31,
                      fraction = v.bits & 1023;
  if (exponent == 31) return detail::float_of(sign | 0x7f800000u | fraction << 13);
  if (exponent) return detail::float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal, exact in fp32
  return sign ? -magnitude : magnitude;
#endif
}

MOX_HD inline void from_float(float v, float& out) {
  out = v;
}
MOX_HD inline void from_float(float v, Bf16& out) {
  const std::uint32_t b = detail::bits_of(v);
  const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
  // adding half of the last kept bit, less one when that bit is even, rounds to nearest even
  out.bits = static_cast<std::uint16_t>(nan ? b >> 16 | 64 : (b + 0x7fffu + (b >> 16 & 1)) >> 16);
}
MOX_HD inline void from_float(float v, Fp16& out) {
#if defined(__CUDA_ARCH__)
  out.bits = __half_as_ushort(__float2half_rn(v));
#else
  const std::uint32_t b = detail::bits_of(v), magnitude = b & 0x7fffffffu;
  std::uint32_t h;
  if (magnitude > 0x7f800000u) {
    h = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    h = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {
    h = (magnitude + 0xfffu + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  } else {  // subnormal: adding 0.5 leaves the rounded value, in units of 2^-24, in the low bits
    h = detail::bits_of(detail::float_of(magnitude) + 0.5f) - 0x3f000000u;
  }
  out.bits = static_cast<std::uint16_t>(b >> 16 & 0x8000u) | static_cast<std::uint16_t>(h);
#endif
}

}  // namespace mox
