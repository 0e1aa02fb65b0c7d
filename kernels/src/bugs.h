// Faults that tests plant with -DMOX_BUG=n, to show that the emulator finds them. A build without it has
// none.
#pragma once
#include "mox/portable.h"
#ifndef MOX_BUG
#define MOX_BUG 0
#endif

namespace mox {

enum class Bug {
  none,
  missing_barrier,  // 1: a packet is put before all threads of the block have written their part
  list_too_early,   // 2: the list of destinations moves to the next token while slower warps still read it
  single_signal,    // 3: one manifest signal for all epochs, so that an older one may land on top
  missing_wait,     // 4: a packet is unpacked without waiting for it
  early_reuse,      // 5: packets are staged in two slots instead of one per token
  peer_behind,  // 6: no manifest from members of the group that send nothing, who may then be an epoch behind
  single_manifest,  // 7: one manifest buffer for all epochs, overwritten while combine_send still reads it
  missing_part,     // 8: combine adds a partial sum without waiting for it
  missing_result,   // 9: a row that another member of the group combines is taken without waiting for it
};

MOX_HD constexpr bool planted(Bug b) {
  return static_cast<int>(b) == MOX_BUG;
}

}  // namespace mox
