#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

template <class T>
float read(const std::byte* from) {
  T v;
  std::memcpy(&v, from, sizeof v);
  return mox::to_float(v);
}
template <class T>
void write(std::byte* to, float v) {
  T element;
  mox::from_float(v, element);
  std::memcpy(to, &element, sizeof element);
}

// unit roundoff, and half of the smallest number
std::pair<double, double> precision(mox::DType t) {
  if (t == mox::DType::bf16) return {0x1p-8, 0x1p-134};
  if (t == mox::DType::fp16) return {0x1p-11, 0x1p-25};
  return {0x1p-24, 0x1p-150};
}

}  // namespace

float element(const std::byte* row, mox::DType type, std::uint32_t d) {
  const std::byte* at = row + d * mox::bytes_of(type);
  switch (type) {
    case mox::DType::bf16: return read<mox::Bf16>(at);
    case mox::DType::fp16: return read<mox::Fp16>(at);
    case mox::DType::fp32: return read<float>(at);
    case mox::DType::fp8: break;
  }
  return static_cast<float>(static_cast<std::int8_t>(*at));
}

void store_element(std::byte* row, mox::DType type, std::uint32_t d, float value) {
  std::byte* at = row + d * mox::bytes_of(type);
  if (type == mox::DType::bf16) return write<mox::Bf16>(at, value);
  if (type == mox::DType::fp16) return write<mox::Fp16>(at, value);
  write<float>(at, value);
}

float rounded(float v, mox::DType type) {
  std::byte bytes[4];
  store_element(bytes, type, 0, v);
  return element(bytes, type, 0);
}

Reference::Reference(const Case& c_, std::uint32_t object, std::uint32_t epoch) : c(c_) {
  for (std::uint32_t g = 0; g < c.shape.ranks / c.shape.dp; g++)
    groups.push_back(draw_input(c, object, epoch, g));
}

std::uint32_t Reference::home(std::int32_t expert) const {
  std::uint32_t rank = 0, left = static_cast<std::uint32_t>(expert);
  const auto size = [&](std::uint32_t r) {
    return c.shape.experts / c.shape.ranks + (r < c.shape.experts % c.shape.ranks);
  };
  while (left >= size(rank)) left -= size(rank++);
  return rank;
}

std::vector<Row> Reference::rows(std::uint32_t expert) const {
  std::vector<Row> out;
  const auto e = static_cast<std::int32_t>(expert);
  for (std::uint32_t source = 0; source < c.shape.ranks; source++) {
    const Input& in = of(source);
    for (std::uint32_t t = source % c.shape.dp; t < in.sent; t += c.shape.dp) {
      const auto* chosen = &in.experts[t * c.shape.top_k];
      if (std::count(chosen, chosen + c.shape.top_k, e)) out.push_back({source, t});
    }
  }
  return out;
}

std::vector<std::uint32_t> Reference::ranks_of(const Input& in, std::uint32_t token) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t k = 0; k < c.shape.top_k; k++) {
    const std::int32_t e = in.experts[token * c.shape.top_k + k];
    if (e >= 0) out.push_back(home(e));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

float Reference::expert(std::uint32_t e, const Input& in, std::uint32_t token, std::uint32_t d) const {
  const mox::Shape& s = c.shape;
  const std::uint32_t row_bytes = s.hidden * mox::bytes_of(s.dispatch);
  float v = element(&in.x[std::uint64_t{token} * row_bytes], s.dispatch, d);
  if (s.dispatch == mox::DType::fp8)
    v *= in.scales[token * ((s.hidden + mox::kScaleGroup - 1) / mox::kScaleGroup) + d / mox::kScaleGroup];
  return v * static_cast<float>(1 + e % 2);
}

Reference::Sum Reference::combined(const Input& in, std::uint32_t token, std::uint32_t d) const {
  const mox::Shape& s = c.shape;
  const mox::DType wire = s.wire_fp32 ? mox::DType::fp32 : s.combine;
  Sum out{0, 0, 0};
  double terms = 0;
  for (std::uint32_t rank : ranks_of(in, token)) {
    float partial = 0;
    double exact = 0;
    for (std::uint32_t k = 0; k < s.top_k; k++) {
      const std::int32_t e = in.experts[token * s.top_k + k];
      if (e < 0 || home(e) != rank) continue;
      const float x = rounded(expert(static_cast<std::uint32_t>(e), in, token, d), s.expert_out),
                  w = in.weights[token * s.top_k + k];
      partial = std::fmaf(w, x, partial);
      exact += static_cast<double>(w) * x;
      terms += std::fabs(static_cast<double>(w) * x);
    }
    out.value += rounded(partial, wire);
    out.exact += exact;
    out.bound += precision(wire).first * std::fabs(exact) + precision(wire).second;
  }
  out.value = rounded(out.value, s.combine);
  // top_k products and as many sums in fp32, then one rounding of the result
  out.bound += 2 * s.top_k * 0x1p-24 * terms;
  out.bound = out.bound * (1 + precision(s.combine).first) +
              precision(s.combine).first * std::fabs(out.exact) + precision(s.combine).second;
  return out;
}

std::pair<std::uint64_t, std::uint64_t> Reference::bytes() const {
  const mox::Shape& s = c.shape;
  const auto round16 = [](std::uint64_t n) { return (n + 15) / 16 * 16; };
  const std::uint64_t scales = s.dispatch == mox::DType::fp8 ? (s.hidden + 127) / 128 * 4 : 0;
  const std::uint64_t packet =
      round16(round16(16 + 8 * s.top_k) + s.hidden * mox::bytes_of(s.dispatch) + scales);
  const std::uint64_t partial = round16(s.hidden * (s.wire_fp32 ? 4 : mox::bytes_of(s.combine)));
  const std::uint64_t result = round16(s.hidden * mox::bytes_of(s.combine));
  const std::uint64_t words = ((s.max_tokens + s.dp - 1) / s.dp + 31) / 32,
                      local = (s.experts + s.ranks - 1) / s.ranks;
  const std::uint64_t manifest = round16((1 + local) * words * 4);
  std::uint64_t remote = std::uint64_t{s.ranks} * (s.ranks - 1) * manifest, self = s.ranks * manifest;
  for (std::uint32_t source = 0; source < s.ranks; source++) {
    const Input& in = of(source);
    for (std::uint32_t t = source % s.dp; t < in.sent; t += s.dp) {
      for (std::uint32_t to : ranks_of(in, t)) (to == source ? self : remote) += packet + partial;
      remote += (s.dp - 1) * result;
    }
  }
  return {remote, remote + (s.self_put ? self : 0)};
}
