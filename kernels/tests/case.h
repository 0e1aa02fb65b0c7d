// A test case: shape, transport and data, all drawn from one seed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "emu.h"
#include "mox/shape.h"

struct Random {  // splitmix64, as a plain generator
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() % n); }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[below(static_cast<std::uint32_t>(all.size()))];
  }
};

struct Case {
  emu::Config machine;
  mox::Shape shape;
  std::uint32_t blocks = 2, threads = 64, epochs = 3, objects = 1;
  bool exact = true;         // small integers: every sum is exact in every format
  bool in_turn = false;      // the host waits after each half
  bool two_streams = false;  // sends on one stream, receives on another, ordered by events
  bool int64 = false, bounded = false, weighted = true, repeats = false;
  std::uint32_t nobody_percent = 0, hot_percent = 0;
};

Case draw(std::uint64_t seed);
void settle(Case&);  // what follows from the rest; after anything was changed by hand
std::string describe(const Case&);

// What one group of ranks feeds in at one epoch.
struct Input {
  std::uint32_t given = 0, sent = 0;  // tokens passed, and what bound_m leaves of them
  std::vector<std::byte> x;           // [given, payload bytes]
  std::vector<float> scales;          // [given, scale groups]
  std::vector<std::int32_t> experts;  // [given, top_k]
  std::vector<float> weights;         // [given, top_k]
};
Input draw_input(const Case&, std::uint32_t object, std::uint32_t epoch, std::uint32_t group);
