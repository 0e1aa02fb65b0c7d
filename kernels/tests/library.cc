// What the library promises beyond right answers: number formats, buffers, errors, deadlines.
//
//   library        prints one line for each test, exit status 1 when one fails
//   library describe RANKS EXPERTS TOP_K TOKENS HIDDEN      prints the buffers of an fp8 -> bf16 shape
#include <nvshmem.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "job.h"

namespace {

int failures = 0;

void report(const std::string& name, bool ok, const std::string& what) {
  std::printf("%s %s: %s\n", ok ? "ok  " : "FAIL", name.c_str(), what.c_str());
  failures += !ok;
}

void says(const std::string& name, const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (text.find(part) == std::string::npos)
      return report(name, false, "expected '" + std::string(part) + "' in: " + text);
  report(name, true, text);
}

// ---- number formats, against their definition

double value_of(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1),
            fraction = bits & ((1 << fraction_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude = exponent ? std::ldexp(1.0 + std::ldexp(fraction, -fraction_bits), exponent - bias)
                                    : std::ldexp(fraction, 1 - bias - fraction_bits);
  return bits >> 15 ? -magnitude : magnitude;
}

template <class T>
void formats(const char* name, int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  T out;
  const auto rounds = [&](float v, std::uint32_t bits) {
    mox::from_float(v, out);
    return out.bits == bits;
  };
  std::uint32_t wrong = 0;
  for (std::uint32_t h = 0; h < 0x10000; h++) {
    const T in{static_cast<std::uint16_t>(h)};
    const std::uint32_t magnitude = h & 0x7fff;
    const float v = mox::to_float(in);
    if (magnitude > infinity) {
      mox::from_float(v, out);
      wrong += !std::isnan(v) || !std::isnan(mox::to_float(out));
      continue;
    }
    wrong += magnitude == infinity
                 ? !std::isinf(v)
                 : static_cast<double>(v) != value_of(in.bits, exponent_bits, fraction_bits);
    wrong += !rounds(v, h);
    if (magnitude >= infinity) continue;
    // halfway to the next number in magnitude goes to the even one, a little less or more to the nearer one
    const double next = value_of(static_cast<std::uint16_t>(magnitude + 1), exponent_bits, fraction_bits),
                 low = std::fabs(static_cast<double>(v));
    const double top =
        magnitude + 1 == infinity
            ? low + (low - value_of(static_cast<std::uint16_t>(magnitude - 1), exponent_bits, fraction_bits))
            : next;
    const double sign = h >> 15 ? -1 : 1;
    const auto middle = static_cast<float>(sign * (low + top) / 2);
    if (static_cast<double>(middle) != sign * (low + top) / 2) continue;  // finer than fp32
    wrong += !rounds(middle, h % 2 ? h + 1 : h);
    wrong += !rounds(std::nextafter(middle, 0.0f), h);
    wrong += !rounds(std::nextafter(middle, static_cast<float>(sign) * INFINITY), h + 1);
  }
  report(std::string("format ") + name, wrong == 0, std::to_string(wrong) + " of 65536 patterns wrong");
}

// ---- shapes

mox::Shape good() {
  mox::Shape s;
  s.ranks = 4;
  s.experts = 8;
  s.top_k = 2;
  s.max_tokens = 8;
  s.hidden = 32;
  return s;
}

void bad_shapes() {
  const auto says_of = [](const char* name, const std::function<void(mox::Shape&)>& change,
                          std::initializer_list<const char*> parts) {
    mox::Shape s = good();
    change(s);
    says(name, mox::check(s), parts);
  };
  report("good shape", mox::check(good()).empty(), "accepted");
  says_of("no ranks", [](auto& s) { s.ranks = 0; }, {"ranks is 0, expected 1 to 4096"});
  says_of("too many experts", [](auto& s) { s.experts = 1025; }, {"experts is 1025, expected 1 to 1024"});
  says_of("top_k of 17", [](auto& s) { s.top_k = 17; }, {"top_k is 17, expected 1 to 16"});
  says_of("top_k beyond experts", [](auto& s) { s.top_k = 9; }, {"top_k is 9, expected at most experts (8)"});
  says_of("odd hidden", [](auto& s) { s.hidden = 12; }, {"24 bytes, expected a multiple of 16"});
  says_of("odd group", [](auto& s) { s.dp = 3; }, {"dp is 3, expected a divisor of ranks (4)"});
  says_of("a type that is none", [](auto& s) { s.dispatch = static_cast<mox::DType>(4); },
          {"dispatch is 4, expected 0 to 3 (bf16, fp16, fp32, fp8)"});
  says_of("fp8 results", [](auto& s) { s.combine = mox::DType::fp8; }, {"combine is fp8"});
  says_of("fp8 from experts", [](auto& s) { s.expert_out = mox::DType::fp8; }, {"expert_out is fp8"});
  says_of("too many tokens in all", [](auto& s) { s.ranks = 4096, s.max_tokens = 1 << 20; },
          {"ranks x tokens is 4294967296"});
  says_of("rows beyond int32", [](auto& s) { s.row_capacity = 1u << 31; },
          {"rows on one rank are 4294967296, expected fewer than 2^31"});
}

void buffers() {
  // no two buffers overlap, each begins at a cache line: read back from what describe() prints
  mox::Shape s = good();
  s.dp = 2;
  const std::string text = mox::describe(s);
  std::uint64_t end = 0;
  bool ok = true;
  int count = 0;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1, count++) {
    char name[32];
    unsigned long bytes, offset;
    if (std::sscanf(text.c_str() + at, "%31s %lu bytes at %lu", name, &bytes, &offset) != 3) break;
    ok &= offset >= end && offset % 128 == 0;
    end = offset + bytes;
  }
  report("buffers", ok && count == 11 && end <= mox::symmetric_bytes(s),
         std::to_string(count) + " buffers, " + std::to_string(mox::symmetric_bytes(s)) + " bytes");
}

// ---- runs that go wrong

Case small() {
  Case c = draw(1);
  c.shape = good();
  c.machine = {};
  c.machine.time_passes = true;
  c.blocks = 2, c.threads = 64, c.epochs = 2, c.objects = 1;
  c.in_turn = c.two_streams = c.int64 = c.bounded = c.repeats = false;
  c.weighted = c.exact = true;
  c.nobody_percent = c.hot_percent = 0;
  return c;
}

// Runs the case; returns each rank's failure, and the first fault of the emulator ("" for none).
struct Outcome {
  std::map<int, mox::Failure> failed;
  std::string fault;
};

Outcome run(const Case& c, const std::function<void(Job&)>& epochs) {
  Outcome out;
  emu::Config machine = c.machine;
  machine.pes = static_cast<int>(c.shape.ranks);
  machine.heap_bytes = 8 << 20;
  auto jobs = std::make_unique<std::vector<std::unique_ptr<Job>>>(c.shape.ranks);
  try {
    emu::run(machine, [&](int pe) {
      auto& job = (*jobs)[static_cast<std::size_t>(pe)];
      job = std::make_unique<Job>(c, 0, static_cast<std::uint32_t>(pe));
      epochs(*job);
      cudaDeviceSynchronize();
      if (const auto f = job->all.failure()) out.failed[pe] = *f;
      nvshmem_barrier_all();
      job.reset();
    });
  } catch (const emu::Fault& f) {
    out.fault = f.what();
    static_cast<void>(jobs.release());  // there is no machine left that could free them
  }
  return out;
}

void two_epochs(Job& job) {
  for (std::uint32_t e = 0; e < 2; e++) job.start(e);
}

void deadlines() {
  std::map<mox::Phase, std::string> seen;
  bool ended = true;
  for (std::uint32_t dp : {1u, 2u})
    for (unsigned after = 0; after < 14; after++) {
      Case c = small();
      c.shape.dp = dp;
      c.machine.cut_from = 1, c.machine.cut_to = 0, c.machine.cut_after = after;
      const Outcome out = run(c, two_epochs);
      ended &= out.fault.empty();
      for (const auto& [pe, f] : out.failed)
        if (pe == 0 && f.peer == 1) seen.emplace(f.phase, mox::message(f));
    }
  report("every run with a broken link ends", ended, "28 runs");
  says("deadline of a manifest", seen[mox::Phase::manifest],
       {"rank 0, epoch 1, dispatch manifest: no word from rank 1 in time; wanted 1, found 0"});
  says("deadline of a packet", seen[mox::Phase::packet],
       {"rank 0, epoch ", "dispatch packet: no word from rank 1 for token ", "wanted "});
  says("deadline of a partial sum", seen[mox::Phase::partial],
       {"rank 0, epoch ", "combine partial: no word from rank 1 for token "});
  says("deadline of a result", seen[mox::Phase::result],
       {"rank 0, epoch ", "combine result: no word from rank 1 for token "});
}

void rank_that_never_comes() {
  const Outcome out = run(small(), [](Job& job) {
    if (job.rank != 2) two_epochs(job);
  });
  bool ok = out.fault.empty() && out.failed.size() == 3;
  for (const auto& [pe, f] : out.failed) ok &= f.phase == mox::Phase::manifest && f.peer == 2 && f.epoch == 1;
  report("a rank that never comes", ok,
         out.failed.empty() ? out.fault : mox::message(out.failed.begin()->second));
}

void bad_expert() {
  const Outcome out = run(small(), [](Job& job) {
    static const std::vector<std::byte> x(1024);
    static const std::vector<std::int32_t> experts = {0, 1, 2, 8};
    static std::vector<std::byte> rows(1 << 16), y(1024);
    static std::vector<std::int32_t> counts(4);
    mox::DispatchIn in;
    in.x = x.data(), in.experts = experts.data(), in.tokens = job.rank == 3 ? 2 : 0;
    job.all.dispatch_send(in, job.sends);
    job.all.dispatch_recv({rows.data(), nullptr, counts.data(), nullptr, nullptr}, job.sends);
  });
  says("an expert that does not exist", out.failed.count(3) ? mox::message(out.failed.at(3)) : out.fault,
       {"rank 3, epoch 1, dispatch routing: token 1 names expert 8, expected less than 8"});
}

// Rows of rank 0, to which every rank sends 3 tokens for each of its 2 experts.
std::string with_room_for(std::uint32_t capacity, std::uint32_t align) {
  Case c = small();
  c.shape.row_capacity = capacity;
  c.shape.row_align = align;
  const Outcome out = run(c, [](Job& job) {
    static const std::vector<std::byte> x(1024);
    static const std::vector<std::int32_t> experts = {0, 1, 1, 0, 0, 1};
    std::vector<std::byte> rows(std::size_t{job.row_count()} * 64, kUntouched);
    std::vector<std::int32_t> counts(4);
    mox::DispatchIn in;
    in.x = x.data(), in.experts = experts.data(), in.tokens = 3;
    job.all.dispatch_send(in, job.sends);
    job.all.dispatch_recv({rows.data(), nullptr, counts.data(), nullptr, nullptr}, job.sends);
    cudaDeviceSynchronize();
    const auto untouched = static_cast<std::size_t>(std::count(rows.begin(), rows.end(), kUntouched));
    if (job.all.failure() && (untouched != rows.size() || counts[0] || counts[1]))
      emu::fail(emu::FaultKind::failed, "rank %u: rows were written after all", job.rank);
  });
  if (!out.fault.empty()) return out.fault;
  return out.failed.empty() ? "all fit" : mox::message(out.failed.begin()->second);
}

void too_many_rows() {
  const auto error = [](const char* expert, const char* row, const char* room) {
    return "rank 0, epoch 1, dispatch rows: expert " + std::string(expert) + " of this rank needs row " +
           row + ", but there is room for " + room + ": raise row_capacity";
  };
  says("as many rows as fit, padded", with_room_for(12, 0), {"all fit"});
  says("more rows than fit, padded", with_room_for(11, 0), {error("0", "12", "11").c_str()});
  says("as many rows as fit, packed", with_room_for(28, 16), {"all fit"});
  says("more rows than fit, packed", with_room_for(27, 16), {error("1", "28", "27").c_str()});
}

void another_packet() {
  says("a packet that is not the one expected",
       mox::message({mox::Phase::header, 3, 1, 5, 2, mox::tag_of(2, 1, 5), mox::tag_of(1, 1, 4)}),
       {"rank 3, epoch 2, dispatch header: in the place of token 5 from rank 1 lies token 4 of those that "
        "rank 1 sends in epoch 1, expected token 5 of those that rank 1 sends in epoch 2"});
}

std::string thrown(const std::function<void()>& f) {
  try {
    f();
  } catch (const mox::Error& e) {
    return e.what();
  }
  return "nothing thrown";
}

void calls() {
  std::map<std::string, std::string> text;
  const Case c = small();
  const Outcome out = run(c, [&](Job& job) {
    const mox::DispatchIn none;
    mox::DispatchIn many = none;
    many.tokens = 9;
    text["too many tokens"] = thrown([&] { job.all.dispatch_send(many, job.sends); });
    many.tokens = 1;
    text["no x"] = thrown([&] { job.all.dispatch_send(many, job.sends); });
    alignas(16) static const char odd[32] = {};
    many.x = odd + 4, many.experts = odd;
    text["odd x"] = thrown([&] { job.all.dispatch_send(many, job.sends); });
    mox::DispatchOut out;
    out.rows = const_cast<char*>(odd + 8), out.counts = reinterpret_cast<std::int32_t*>(out.rows);
    text["odd rows"] = thrown([&] { job.all.dispatch_recv(out, job.sends); });
    text["odd answers"] = thrown([&] { job.all.combine_send(odd + 2, job.sends); });
    text["odd y"] = thrown([&] { job.all.combine_recv(const_cast<char*>(odd + 1), job.sends); });
    text["no rows"] = thrown([&] { job.all.dispatch_recv({}, job.sends); });
    text["out of order"] = thrown([&] { job.all.combine_send(&many, job.sends); });
    text["other ranks"] = thrown([&] {
      mox::Shape s = c.shape;
      s.ranks = 3;
      const mox::AllToAll all(s);
    });
    text["odd threads"] = thrown([&] { const mox::AllToAll all(c.shape, {1, 1, 33}); });
    text["too many blocks"] = thrown([&] { const mox::AllToAll all(c.shape, {1, 65536, 32}); });
    text["no time"] = thrown([&] { const mox::AllToAll all(c.shape, {0, 1, 32}); });
    text["bad shape"] = thrown([&] {
      mox::Shape s = c.shape;
      s.hidden = 7;
      const mox::AllToAll all(s);
    });
    text["too little symmetric memory"] = thrown([&] {
      mox::Shape s = c.shape;
      s.max_tokens = 1 << 16;
      const mox::AllToAll all(s);
    });
  });
  report("calls", out.fault.empty(), out.fault.empty() ? "none of them started anything" : out.fault);
  const auto check = [&](const char* name, std::initializer_list<const char*> parts) {
    says(name, text[name], parts);
  };
  check("too many tokens", {"dispatch_send: tokens is 9, expected at most max_tokens (8)"});
  check("no x", {"dispatch_send: x and experts are needed"});
  check("odd x", {"dispatch_send: x starts 4 bytes past a multiple of 16, expected an aligned address"});
  check("odd rows", {"dispatch_recv: rows starts 8 bytes past"});
  check("odd answers", {"combine_send: rows starts 2 bytes past"});
  check("odd y", {"combine_recv: y starts 1 bytes past"});
  check("no rows", {"dispatch_recv: rows and counts are needed"});
  check("out of order", {"combine_send is called where dispatch_send is next"});
  check("other ranks", {"ranks is 3, but NVSHMEM runs on 4 PEs"});
  check("odd threads", {"threads is 33, expected a multiple of 32"});
  check("too many blocks", {"blocks is 65536, expected at most 65535"});
  check("no time", {"timeout_ms is 0"});
  check("bad shape", {"AllToAll: a row of hidden (7) elements"});
  check(
      "too little symmetric memory",
      {"needs ", " bytes of symmetric memory on every rank, more than is left; set NVSHMEM_SYMMETRIC_SIZE"});
}

void later_calls() {
  Case c = small();
  c.machine.cut_from = 1, c.machine.cut_to = 0;
  std::string text;
  run(c, [&](Job& job) {
    job.start(0);
    cudaDeviceSynchronize();
    if (job.rank == 0) text = thrown([&] { job.start(1); });
  });
  says("calls after a failure", text,
       {"dispatch_send: an earlier call failed: rank 0, epoch 1, dispatch manifest"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "describe") {
    mox::Shape s;
    std::uint32_t* to[] = {&s.ranks, &s.experts, &s.top_k, &s.max_tokens, &s.hidden};
    for (int i = 0; i < 5; i++) *to[i] = static_cast<std::uint32_t>(std::strtoul(argv[i + 2], nullptr, 10));
    s.dispatch = mox::DType::fp8;
    const std::string wrong = mox::check(s);
    std::printf("%s", wrong.empty() ? mox::describe(s).c_str() : (wrong + "\n").c_str());
    return !wrong.empty();
  }
  formats<mox::Bf16>("bf16", 8, 7);
  formats<mox::Fp16>("fp16", 5, 10);
  bad_shapes();
  buffers();
  deadlines();
  rank_that_never_comes();
  bad_expert();
  too_many_rows();
  another_packet();
  calls();
  later_calls();
  return failures ? 1 : 0;
}
