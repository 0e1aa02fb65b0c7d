// What a kernel leaves behind when it could not go on. The first failure of an object is kept.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "mox/portable.h"

namespace mox {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Phase : std::uint32_t {
  none,
  manifest,  // dispatch_recv waits for the manifest of a rank
  packet,    // dispatch_recv waits for a token
  header,    // dispatch_recv finds a packet that is not the one it waited for
  capacity,  // dispatch_recv has more rows than the shape has room for
  routing,   // dispatch_send is given an expert that does not exist
  partial,   // combine_recv waits for a partial sum
  result,    // combine_recv waits for a row that another member of the group combines
};

MOX_HD constexpr const char* name_of(Phase p) {
  switch (p) {
    case Phase::manifest: return "dispatch manifest";
    case Phase::packet: return "dispatch packet";
    case Phase::header: return "dispatch header";
    case Phase::capacity: return "dispatch rows";
    case Phase::routing: return "dispatch routing";
    case Phase::partial: return "combine partial";
    case Phase::result: return "combine result";
    case Phase::none: break;
  }
  return "none";
}

struct Failure {
  Phase phase;
  std::uint32_t rank;   // who failed
  std::uint32_t peer;   // who was waited for; the expert, for capacity
  std::uint32_t token;  // on the rank that sent it; none for manifests
  std::uint64_t epoch;  // dispatches since the object was made
  std::uint64_t wanted, found;
};

constexpr std::uint32_t kNoToken = 0xffffffffu;

std::string message(const Failure&);  // one line

}  // namespace mox
