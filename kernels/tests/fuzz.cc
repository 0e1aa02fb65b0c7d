// Dispatch and combine on the emulator, against the reference, over random shapes, transports and schedules.
//
//   fuzz [--seeds N] [--first N] [--seed N] [--until-failure] [--twice] [--quiet]
//        [--ranks N --experts N --top-k N --tokens N --hidden N --epochs N ...]   fixes what would be drawn
//
// --seed N replays one run exactly and says what it was. Exit status 1 when a seed failed.
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "case.h"
#include "mox/alltoall.h"
#include "reference.h"

namespace {

constexpr auto kUntouched = std::byte{0xEE};

struct Buffers {  // of one epoch on one rank: all outlive the run, since nothing waits in between
  Input in;
  std::vector<std::int64_t> experts64;
  std::int32_t bound = 0;
  std::vector<std::byte> rows, outputs, y;
  std::vector<float> scales;
  std::vector<std::int32_t> counts, starts, source;
};

struct Job {  // one object on one rank
  const Case& c;
  std::uint32_t number, rank;
  mox::AllToAll all;
  std::vector<std::unique_ptr<Buffers>> epochs;
  cudaStream_t sends = nullptr, receives = nullptr;
  cudaEvent_t event = nullptr;

  Job(const Case& c_, std::uint32_t n, std::uint32_t r) : c(c_), number(n), rank(r), all(c_.shape, {10000, c_.blocks, c_.threads}) {
    cudaStreamCreate(&sends);
    receives = sends;
    if (c.two_streams) cudaStreamCreate(&receives);
    cudaEventCreate(&event);
  }

  std::uint64_t row_count() const { return c.shape.row_align ? all.layout().capacity : std::uint64_t{all.layout().capacity} * all.layout().local; }

  void order(cudaStream_t before, cudaStream_t after) {
    if (c.in_turn) cudaStreamSynchronize(before);
    if (before == after) return;
    cudaEventRecord(event, before);
    cudaStreamWaitEvent(after, event);
  }

  void start(std::uint32_t epoch) {
    const mox::Layout& l = all.layout();
    epochs.push_back(std::make_unique<Buffers>());
    Buffers& b = *epochs.back();
    b.in = draw_input(c, number, epoch, rank / c.shape.dp);
    b.experts64.assign(b.in.experts.begin(), b.in.experts.end());
    b.bound = static_cast<std::int32_t>(b.in.sent);
    const std::uint64_t rows = row_count();
    b.rows.assign(rows * l.payload_bytes, kUntouched);
    b.scales.assign(rows * l.scale_bytes / 4, -1.0f);
    b.outputs.assign(rows * c.shape.hidden * mox::bytes_of(c.shape.expert_out), kUntouched);
    b.y.assign(std::uint64_t{c.shape.max_tokens} * c.shape.hidden * mox::bytes_of(c.shape.combine), kUntouched);
    b.counts.assign(l.local, -1);
    b.starts.assign(l.local, -1);
    b.source.assign(2 * rows, -1);

    mox::DispatchIn in;
    in.x = b.in.x.data();
    in.scales = b.in.scales.data();
    in.experts = c.int64 ? static_cast<const void*>(b.experts64.data()) : b.in.experts.data();
    in.experts_are_int64 = c.int64;
    in.weights = c.weighted ? b.in.weights.data() : nullptr;
    in.tokens = b.in.given;
    in.bound_m = c.bounded ? &b.bound : nullptr;
    all.dispatch_send(in, sends);
    order(sends, receives);
    all.dispatch_recv({b.rows.data(), b.scales.data(), b.counts.data(), b.starts.data(), b.source.data()}, receives);
    emu::enqueue(receives, [this, &b] { run_experts(b); });
    order(receives, sends);
    all.combine_send(b.outputs.data(), sends);
    order(sends, receives);
    all.combine_recv(b.y.data(), receives);
    order(receives, sends);
  }

  // every expert doubles its rows or leaves them, as the reference does
  void run_experts(Buffers& b) const {
    const mox::Shape& s = c.shape;
    const mox::Layout& l = all.layout();
    const std::uint32_t first = mox::first_expert(rank, s.experts, s.ranks);
    for (std::uint32_t e = 0; e < mox::experts_at(rank, s.experts, s.ranks); e++)
      for (std::int32_t i = 0; i < b.counts[e]; i++) {
        const std::uint64_t row = static_cast<std::uint64_t>(b.starts[e] + i);
        for (std::uint32_t d = 0; d < s.hidden; d++) {
          float v = element(&b.rows[row * l.payload_bytes], s.dispatch, d);
          if (l.scale_bytes) v *= b.scales[row * l.scale_bytes / 4 + d / mox::kScaleGroup];
          store_element(&b.outputs[row * s.hidden * mox::bytes_of(s.expert_out)], s.expert_out, d, v * static_cast<float>(1 + (first + e) % 2));
        }
      }
  }

  template <class... A>
  void expect(bool ok, const char* format, A... args) const {
    char text[256];
    if (ok) return;
    std::snprintf(text, sizeof text, format, args...);
    emu::fail(emu::FaultKind::failed, "rank %u object %u: %s", rank, number, text);
  }

  void check(std::uint32_t epoch, const Reference& ref) const {
    expect(!all.failure(), "failure: %s", all.failure() ? mox::message(*all.failure()).c_str() : "");
    check_rows(epoch, ref);
    check_sums(epoch, ref);
  }

  void check_rows(std::uint32_t epoch, const Reference& ref) const {
    const mox::Shape& s = c.shape;
    const mox::Layout& l = all.layout();
    const Buffers& b = *epochs[epoch];
    std::vector<bool> used(row_count());
    std::uint32_t start = 0;
    const std::uint32_t first = mox::first_expert(rank, s.experts, s.ranks);
    for (std::uint32_t e = 0; e < mox::experts_at(rank, s.experts, s.ranks); e++) {
      const auto rows = ref.rows(first + e);
      expect(b.counts[e] == static_cast<int>(rows.size()), "epoch %u expert %u: %d rows, expected %zu", epoch, e, b.counts[e], rows.size());
      const std::uint32_t at = s.row_align ? start : e * l.capacity;
      expect(b.starts[e] == static_cast<int>(at), "epoch %u expert %u: starts at %d, expected %u", epoch, e, b.starts[e], at);
      for (std::size_t i = 0; i < rows.size(); i++) {
        const auto [source, token] = rows[i];
        const Input& in = ref.of(source);
        const std::uint64_t row = at + i;
        used[row] = true;
        expect(b.source[2 * row] == static_cast<int>(source) && b.source[2 * row + 1] == static_cast<int>(token),
               "epoch %u expert %u row %zu: from rank %d token %d, expected %u and %u", epoch, e, i, b.source[2 * row], b.source[2 * row + 1], source, token);
        expect(!std::memcmp(&b.rows[row * l.payload_bytes], &in.x[std::uint64_t{token} * l.payload_bytes], l.payload_bytes),
               "epoch %u expert %u row %zu (rank %u token %u): wrong payload", epoch, e, i, source, token);
        const std::uint32_t groups = l.scale_bytes / 4;
        expect(!groups || !std::memcmp(&b.scales[row * groups], &in.scales[token * groups], l.scale_bytes),
               "epoch %u expert %u row %zu (rank %u token %u): wrong scales", epoch, e, i, source, token);
      }
      if (s.row_align) start += static_cast<std::uint32_t>((rows.size() + s.row_align - 1) / s.row_align * s.row_align);
    }
    for (std::uint64_t row = 0; row < used.size(); row++)
      for (std::uint32_t i = 0; !used[row] && i < l.payload_bytes; i++)
        expect(b.rows[row * l.payload_bytes + i] == kUntouched, "epoch %u: row %" PRIu64 " belongs to nobody and was written", epoch, row);
  }

  void check_sums(std::uint32_t epoch, const Reference& ref) const {
    const mox::Shape& s = c.shape;
    const Buffers& b = *epochs[epoch];
    const std::uint64_t row_bytes = std::uint64_t{s.hidden} * mox::bytes_of(s.combine);
    for (std::uint32_t t = 0; t < b.in.sent; t++)
      for (std::uint32_t d = 0; d < s.hidden; d++) {
        const float y = element(&b.y[t * row_bytes], s.combine, d);
        const auto want = ref.combined(b.in, t, d);
        expect(std::fabs(y - want.exact) <= (c.exact ? 0.0 : want.bound), "epoch %u token %u element %u: %g, expected %g within %g", epoch, t, d,
               static_cast<double>(y), want.exact, c.exact ? 0.0 : want.bound);
        expect(y == want.value, "epoch %u token %u element %u: %.9g, expected exactly %.9g", epoch, t, d, static_cast<double>(y), static_cast<double>(want.value));
      }
    for (std::uint64_t i = b.in.sent * row_bytes; i < b.y.size(); i++)
      expect(b.y[i] == kUntouched, "epoch %u: row %" PRIu64 " of y belongs to no token and was written", epoch, i / row_bytes);
  }
};

emu::Stats run_case(const Case& c) {
  std::vector<std::vector<Reference>> references(c.objects);
  std::uint64_t remote = 0, all = 0;
  for (std::uint32_t o = 0; o < c.objects; o++)
    for (std::uint32_t e = 0; e < c.epochs; e++) {
      references[o].emplace_back(c, o, e);
      const auto [r, a] = references[o].back().bytes();
      remote += r;
      all += a;
    }
  std::vector<std::unique_ptr<Job>> jobs(std::size_t{c.shape.ranks} * c.objects);
  struct Abandon {  // after a fault there is no machine left that could free them
    std::vector<std::unique_ptr<Job>>& jobs;
    ~Abandon() {
      for (auto& j : jobs) static_cast<void>(j.release());
    }
  } abandon{jobs};
  const auto stats = emu::run(c.machine, [&](int pe) {
    const auto mine = [&](std::uint32_t o) -> std::unique_ptr<Job>& { return jobs[static_cast<std::uint32_t>(pe) * c.objects + o]; };
    for (std::uint32_t o = 0; o < c.objects; o++) mine(o) = std::make_unique<Job>(c, o, pe);
    for (std::uint32_t e = 0; e < c.epochs; e++)
      for (std::uint32_t o = 0; o < c.objects; o++) mine(o)->start(e);
    cudaDeviceSynchronize();
    for (std::uint32_t e = 0; e < c.epochs; e++)
      for (std::uint32_t o = 0; o < c.objects; o++) mine(o)->check(e, references[o][e]);
    for (std::uint32_t o = 0; o < c.objects; o++) mine(o).reset();
  });
  if (stats.remote_bytes != remote || stats.put_bytes != all)
    throw emu::Fault(emu::FaultKind::failed, "puts carried " + std::to_string(stats.remote_bytes) + " bytes between ranks (" + std::to_string(stats.put_bytes) +
                                                 " in all), the closed form says " + std::to_string(remote) + " (" + std::to_string(all) + ")");
  return stats;
}

struct Options {
  std::map<std::string, std::uint64_t> fixed;
  std::uint64_t seeds = 100, first = 1;
  bool until_failure = false, twice = false, quiet = false, one = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    if (a == "--until-failure") {
      o.until_failure = true;
    } else if (a == "--twice") {
      o.twice = true;
    } else if (a == "--quiet") {
      o.quiet = true;
    } else if (a.rfind("--", 0) == 0 && i + 1 < argc) {
      char* end;
      const std::uint64_t v = std::strtoull(argv[++i], &end, 10);
      if (*end) std::fprintf(stderr, "fuzz: %s is %s, expected a number\n", a.c_str(), argv[i]), std::exit(2);
      if (a == "--seeds") o.seeds = v;
      else if (a == "--first") o.first = v;
      else if (a == "--seed") o.first = v, o.seeds = 1, o.one = true;
      else o.fixed[a.substr(2)] = v;
    } else {
      std::fprintf(stderr, "fuzz: %s is not an option; see the head of fuzz.cc\n", a.c_str()), std::exit(2);
    }
  }
  return o;
}

void fix(Case& c, std::map<std::string, std::uint64_t> fixed) {
  const auto take = [&](const char* name, auto& to) {
    const auto found = fixed.find(name);
    if (found == fixed.end()) return;
    to = static_cast<std::decay_t<decltype(to)>>(found->second);
    fixed.erase(found);
  };
  take("ranks", c.shape.ranks), take("experts", c.shape.experts), take("top-k", c.shape.top_k), take("tokens", c.shape.max_tokens);
  take("hidden", c.shape.hidden), take("dp", c.shape.dp), take("epochs", c.epochs), take("objects", c.objects), take("blocks", c.blocks);
  take("threads", c.threads), take("dispatch", c.shape.dispatch), take("expert-out", c.shape.expert_out), take("combine", c.shape.combine);
  take("row-align", c.shape.row_align), take("self-put", c.shape.self_put), take("peers", c.machine.peer_percent), take("lazy", c.machine.lazy_percent);
  take("slow", c.machine.slow_percent), take("network", c.machine.network_percent), take("fragment", c.machine.fragment_bytes);
  take("resident", c.machine.resident_blocks), take("nobody", c.nobody_percent), take("hot", c.hot_percent), take("repeats", c.repeats);
  if (!fixed.empty()) std::fprintf(stderr, "fuzz: --%s is not an option; see the head of fuzz.cc\n", fixed.begin()->first.c_str()), std::exit(2);
  c.machine.pes = static_cast<int>(c.shape.ranks);
  const std::string wrong = mox::check(c.shape);
  if (!wrong.empty()) std::fprintf(stderr, "fuzz: %s\n", wrong.c_str()), std::exit(2);
  c.machine.heap_bytes = std::size_t{64} << 20;
  while (c.machine.heap_bytes < c.objects * (mox::symmetric_bytes(c.shape) + 256)) c.machine.heap_bytes *= 2;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const auto begin = std::chrono::steady_clock::now();
  emu::Stats sum;
  std::uint64_t failed = 0, seed = o.first;
  for (; seed < o.first + o.seeds; seed++) {
    Case c = draw(seed);
    fix(c, o.fixed);
    if (o.one && !o.quiet) std::printf("seed %" PRIu64 ": %s\n%s", seed, describe(c).c_str(), mox::describe(c.shape).c_str());
    try {
      const auto s = run_case(c);
      if (o.twice) {
        const auto again = run_case(c);
        if (std::memcmp(&s, &again, sizeof s)) throw emu::Fault(emu::FaultKind::failed, "a second run with the same seed took another course");
      }
      sum.switches += s.switches;
      sum.threads += s.threads;
      sum.puts += s.puts;
      sum.put_bytes += s.put_bytes;
      sum.fragments += s.fragments;
    } catch (const emu::Fault& e) {
      failed++;
      if (!o.quiet) std::printf("seed %" PRIu64 " FAILED: %s\n  case: %s\n", seed, e.what(), describe(c).c_str());
      if (o.until_failure) break;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (o.until_failure) {
    std::printf("%s after %" PRIu64 " seeds\n", failed ? "failed" : "no failure", failed ? seed - o.first + 1 : o.seeds);
  } else {
    std::printf("%" PRIu64 " of %" PRIu64 " seeds failed; %.1f seeds/s, %.2f M switches/s, %" PRIu64 " threads, %" PRIu64 " puts (%.1f MB), %" PRIu64
                " fragments, %.1f s\n",
                failed, o.seeds, static_cast<double>(o.seeds) / seconds, static_cast<double>(sum.switches) / seconds / 1e6, sum.threads, sum.puts,
                static_cast<double>(sum.put_bytes) / 1e6, sum.fragments, seconds);
  }
  return failed ? 1 : 0;
}
