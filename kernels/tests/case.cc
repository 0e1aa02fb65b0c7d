#include "case.h"

#include <algorithm>

#include "mox/layout.h"

Case draw(std::uint64_t seed) {
  Random r{seed * 0x632be59bd9b4e019ull + 7};
  Case c;
  c.machine.seed = seed;
  mox::Shape& s = c.shape;
  s.dp = r.one_of({1u, 1u, 1u, 2u, 3u, 4u});
  s.ranks = s.dp * r.between(1, std::max(1u, 8 / s.dp));
  s.experts = r.chance(10) ? r.between(1, 1024) : r.between(1, 4 * s.ranks);
  s.top_k = r.between(1, std::min(r.chance(10) ? 16u : 6u, s.experts));
  s.max_tokens = r.chance(15) ? r.between(33, 70) : r.between(1, 12);
  s.dispatch = r.one_of({mox::DType::bf16, mox::DType::fp16, mox::DType::fp32, mox::DType::fp8});
  s.expert_out = r.one_of({mox::DType::bf16, mox::DType::fp16, mox::DType::fp32});
  s.combine = r.one_of({mox::DType::bf16, mox::DType::fp16, mox::DType::fp32});
  s.wire_fp32 = r.chance(25);
  s.hidden = r.between(1, r.chance(10) ? 40 : 6) * 16 / mox::bytes_of(s.dispatch);
  s.row_align = r.one_of({0u, 0u, 1u, 8u});
  s.self_put = r.chance(25);
  c.blocks = r.between(1, 3);
  c.threads = 32 * r.between(1, 3);
  c.epochs = r.between(2, 5);
  c.objects = r.chance(10) ? 2 : 1;
  c.exact = r.chance(60);
  c.in_turn = r.chance(20);
  c.two_streams = r.chance(20);
  c.int64 = r.chance(30);
  c.bounded = r.chance(20);
  c.weighted = r.chance(90);
  c.repeats = r.chance(10);
  c.nobody_percent = r.chance(20) ? 30 : 0;
  c.hot_percent = r.chance(20) ? 70 : 0;
  c.machine.resident_blocks = r.one_of({0u, 0u, 1u, 2u});
  c.machine.fragment_bytes = r.one_of({16u, 128u, 1024u});
  c.machine.network_percent = r.one_of({10u, 50u, 80u});
  c.machine.lazy_percent = r.one_of({0u, 20u, 60u});
  c.machine.peer_percent = r.one_of({0u, 0u, 50u, 100u});
  c.machine.slow_percent = r.one_of({0u, 15u, 40u});
  settle(c);
  return c;
}

void settle(Case& c) {
  c.machine.pes = static_cast<int>(c.shape.ranks);
  // waiting halves of one object must leave room for the other's: README, "The protocol", 5
  if (c.machine.resident_blocks && c.objects > 1) c.machine.resident_blocks = (c.objects - 1) * c.blocks + 1;
}

std::string describe(const Case& c) {
  const mox::Shape& s = c.shape;
  const auto n = [](auto v) { return std::to_string(v); };
  return n(s.ranks) + " ranks (dp " + n(s.dp) + "), " + n(s.experts) + " experts, top-" + n(s.top_k) + ", " +
         n(s.max_tokens) + " tokens x " + n(s.hidden) + " " + name_of(s.dispatch) + " -> " +
         name_of(s.expert_out) + " -> " + name_of(s.combine) + (s.wire_fp32 ? " (fp32 wire)" : "") +
         (s.self_put ? ", self put" : "") + ", row_align " + n(s.row_align) + "; " + n(c.blocks) + " x " +
         n(c.threads) + " threads, " + n(c.epochs) + " epochs, " + n(c.objects) + " objects" +
         (c.two_streams ? ", two streams" : "") + (c.in_turn ? ", in turn" : "") + "; peers " +
         n(c.machine.peer_percent) + " %, lazy " + n(c.machine.lazy_percent) + " %, slow " +
         n(c.machine.slow_percent) + " %, resident blocks " + n(c.machine.resident_blocks);
}

namespace {

// Element `v` of the dispatched type, as bytes.
template <class T>
void append(std::vector<std::byte>& to, float v) {
  T element;
  mox::from_float(v, element);
  const auto* b = reinterpret_cast<const std::byte*>(&element);
  to.insert(to.end(), b, b + sizeof element);
}

void append_element(std::vector<std::byte>& to, mox::DType type, float v) {
  switch (type) {
    case mox::DType::bf16: return append<mox::Bf16>(to, v);
    case mox::DType::fp16: return append<mox::Fp16>(to, v);
    case mox::DType::fp32: return append<float>(to, v);
    case mox::DType::fp8:
      to.push_back(static_cast<std::byte>(static_cast<std::int8_t>(v)));  // the library only moves it
  }
}

}  // namespace

Input draw_input(const Case& c, std::uint32_t object, std::uint32_t epoch, std::uint32_t group) {
  Random r{c.machine.seed * 1000003 + object * 7919 + epoch * 104729 + group * 15485863 + 1};
  const mox::Shape& s = c.shape;
  Input in;
  in.given = r.chance(15) ? 0 : r.chance(30) ? s.max_tokens : r.below(s.max_tokens + 1);
  in.sent = c.bounded ? r.below(in.given + 1) : in.given;
  const bool fp8 = s.dispatch == mox::DType::fp8;
  const std::uint32_t groups = fp8 ? (s.hidden + mox::kScaleGroup - 1) / mox::kScaleGroup : 0;
  const auto number = [&](int most) {
    if (c.exact) return static_cast<float>(static_cast<int>(r.below(2 * most + 1)) - most);
    return static_cast<float>(static_cast<int>(r.below(20001)) - 10000) / 10000.0f * static_cast<float>(most);
  };
  for (std::uint32_t t = 0; t < in.given; t++) {
    for (std::uint32_t d = 0; d < s.hidden; d++)
      append_element(in.x, s.dispatch,
                     fp8 ? static_cast<float>(static_cast<int>(r.below(5)) - 2) : number(2));
    for (std::uint32_t g = 0; g < groups; g++)
      in.scales.push_back(c.exact ? 1.0f : 0.25f + number(1) * number(1));
    std::vector<std::int32_t> chosen;
    const auto hot = static_cast<std::int32_t>(epoch % s.experts);
    while (chosen.size() < s.top_k) {
      auto e = static_cast<std::int32_t>(r.chance(c.hot_percent) ? (hot + chosen.size()) % s.experts
                                                                 : r.below(s.experts));
      if (!c.repeats)
        while (std::find(chosen.begin(), chosen.end(), e) != chosen.end())
          e = (e + 1) % static_cast<std::int32_t>(s.experts);
      chosen.push_back(e);
    }
    for (std::int32_t e : chosen) {
      in.experts.push_back(r.chance(c.nobody_percent) ? -1 : e);
      in.weights.push_back(c.weighted ? (c.exact ? static_cast<float>(r.below(3)) : number(1)) : 1.0f);
    }
  }
  return in;
}
