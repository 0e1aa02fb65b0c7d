// Dispatch and combine on the emulator, against the reference, over random shapes, transports and schedules.
//
//   fuzz [--seeds N] [--first N] [--seed N] [--until-failure] [--twice] [--break] [--quiet]
//        [--ranks N --experts N --top-k N --tokens N --hidden N --epochs N ...]   fixes what would be drawn
//
// --seed N replays one run exactly and says what it was. --break cuts a link at some point of every run: it
// must end, and nobody may get a wrong result without being told. Exit status 1 when a seed failed.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <string>

#include <nvshmem.h>
#include <sys/resource.h>

#include "job.h"

namespace {

void start(Job& job, std::uint32_t epoch) {
  if (job.epochs.size() < epoch) return;  // an earlier one was refused
  try {
    job.start(epoch);
  } catch (const mox::Error&) {
    if (!job.c.machine.time_passes) throw;
    job.epochs.resize(epoch);
  }
}

// Everything, or with a broken link what was over before this rank failed.
void check(const Job& job, const std::vector<Reference>& references) {
  std::uint64_t sound = references.size();
  if (const auto f = job.all.failure(); f && job.c.machine.time_passes) sound = f->epoch - 1;
  for (std::uint32_t e = 0; e < sound; e++) job.check(e, references[e]);
}

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
    const auto mine = [&](std::uint32_t o) -> std::unique_ptr<Job>& {
      return jobs[static_cast<std::uint32_t>(pe) * c.objects + o];
    };
    for (std::uint32_t o = 0; o < c.objects; o++) mine(o) = std::make_unique<Job>(c, o, pe);
    for (std::uint32_t e = 0; e < c.epochs; e++)
      for (std::uint32_t o = 0; o < c.objects; o++) start(*mine(o), e);
    cudaDeviceSynchronize();
    for (std::uint32_t o = 0; o < c.objects; o++) check(*mine(o), references[o]);
    nvshmem_barrier_all();
    for (std::uint32_t o = 0; o < c.objects; o++) mine(o).reset();
  });
  if (!c.machine.time_passes && (stats.remote_bytes != remote || stats.put_bytes != all))
    throw emu::Fault(emu::FaultKind::failed, "puts carried " + std::to_string(stats.remote_bytes) +
                                                 " bytes between ranks (" + std::to_string(stats.put_bytes) +
                                                 " in all), the closed form says " + std::to_string(remote) +
                                                 " (" + std::to_string(all) + ")");
  return stats;
}

struct Options {
  std::map<std::string, std::uint64_t> fixed;
  std::uint64_t seeds = 100, first = 1;
  bool until_failure = false, twice = false, breaks = false, quiet = false, one = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    if (a == "--until-failure") {
      o.until_failure = true;
    } else if (a == "--twice") {
      o.twice = true;
    } else if (a == "--break") {
      o.breaks = true;
    } else if (a == "--quiet") {
      o.quiet = true;
    } else if (a.rfind("--", 0) == 0 && i + 1 < argc) {
      char* end;
      const std::uint64_t v = std::strtoull(argv[++i], &end, 10);
      if (*end) std::fprintf(stderr, "fuzz: %s is %s, expected a number\n", a.c_str(), argv[i]), std::exit(2);
      if (a == "--seeds")
        o.seeds = v;
      else if (a == "--first")
        o.first = v;
      else if (a == "--seed")
        o.first = v, o.seeds = 1, o.one = true;
      else
        o.fixed[a.substr(2)] = v;
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
    if (static_cast<std::uint64_t>(to) != found->second)
      std::fprintf(stderr, "fuzz: --%s is %" PRIu64 ", expected a smaller number\n", name, found->second),
          std::exit(2);
    fixed.erase(found);
  };
  take("ranks", c.shape.ranks), take("experts", c.shape.experts), take("top-k", c.shape.top_k),
      take("tokens", c.shape.max_tokens);
  take("hidden", c.shape.hidden), take("dp", c.shape.dp), take("epochs", c.epochs),
      take("objects", c.objects), take("blocks", c.blocks);
  take("threads", c.threads), take("dispatch", c.shape.dispatch), take("expert-out", c.shape.expert_out),
      take("combine", c.shape.combine);
  take("row-align", c.shape.row_align), take("row-capacity", c.shape.row_capacity),
      take("wire-fp32", c.shape.wire_fp32), take("self-put", c.shape.self_put),
      take("peers", c.machine.peer_percent), take("lazy", c.machine.lazy_percent);
  take("slow", c.machine.slow_percent), take("network", c.machine.network_percent),
      take("fragment", c.machine.fragment_bytes);
  take("resident", c.machine.resident_blocks), take("nobody", c.nobody_percent), take("hot", c.hot_percent),
      take("repeats", c.repeats);
  if (!fixed.empty())
    std::fprintf(stderr, "fuzz: --%s is not an option; see the head of fuzz.cc\n",
                 fixed.begin()->first.c_str()),
        std::exit(2);
  if (c.epochs == 0 || c.objects == 0)
    std::fprintf(stderr, "fuzz: nothing to run, expected --epochs and --objects from 1\n"), std::exit(2);
  settle(c);
  const std::string wrong = mox::check(c.shape);
  if (!wrong.empty()) std::fprintf(stderr, "fuzz: %s\n", wrong.c_str()), std::exit(2);
  c.machine.heap_bytes = std::size_t{64} << 20;
  while (c.machine.heap_bytes < c.objects * (mox::symmetric_bytes(c.shape) + 256)) c.machine.heap_bytes *= 2;
}

double peak_gigabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;
}

void cut_a_link(Case& c) {
  Random r{c.machine.seed};
  c.machine.time_passes = true;
  c.machine.cut_from = static_cast<int>(r.below(c.shape.ranks));
  c.machine.cut_to = static_cast<int>(r.below(c.shape.ranks));
  c.machine.cut_after = r.below(20);
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const std::clock_t begin = std::clock();
  emu::Stats sum;
  std::uint64_t failed = 0, seed = o.first;
  for (; seed < o.first + o.seeds; seed++) {
    Case c = draw(seed);
    fix(c, o.fixed);
    if (o.breaks) cut_a_link(c);
    if (o.one && !o.quiet)
      std::printf("seed %" PRIu64 ": %s\n%s", seed, describe(c).c_str(), mox::describe(c.shape).c_str());
    try {
      const auto s = run_case(c);
      if (o.twice) {
        const auto again = run_case(c);
        if (std::memcmp(&s, &again, sizeof s))
          throw emu::Fault(emu::FaultKind::failed, "a second run with the same seed took another course");
      }
      sum.switches += s.switches;
      sum.threads += s.threads;
      sum.puts += s.puts;
      sum.put_bytes += s.put_bytes;
      sum.fragments += s.fragments;
    } catch (const emu::Fault& e) {
      failed++;
      if (!o.quiet)
        std::printf("seed %" PRIu64 " FAILED: %s\n  case: %s\n", seed, e.what(), describe(c).c_str());
      if (o.until_failure) break;
    }
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;  // of the CPU
  if (o.until_failure) {
    std::printf("%s after %" PRIu64 " seeds\n", failed ? "failed" : "no failure",
                failed ? seed - o.first + 1 : o.seeds);
  } else {
    std::printf("%" PRIu64 " of %" PRIu64 " seeds failed; %.1f seeds/s, %.2f M switches/s, %" PRIu64
                " threads, %" PRIu64 " puts (%.1f MB), %" PRIu64 " fragments, %.1f s of CPU time, %.2f GB\n",
                failed, o.seeds, static_cast<double>(o.seeds) / seconds,
                static_cast<double>(sum.switches) / seconds / 1e6, sum.threads, sum.puts,
                static_cast<double>(sum.put_bytes) / 1e6, sum.fragments, seconds, peak_gigabytes());
  }
  return failed ? 1 : 0;
}
