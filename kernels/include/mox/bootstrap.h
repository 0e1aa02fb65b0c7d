// NVSHMEM for the device code of this library: every shared object has a device state of its own, so it has
// to be initialized from inside. A unique id made on one rank is handed to the others by whatever the program
// has (torch.distributed, MPI, a file).
#pragma once
#include <cstdint>
#include <vector>

namespace mox {

std::vector<std::uint8_t> unique_id();  // on one rank

// Collective, after cudaSetDevice and before the first AllToAll. Throws mox::Error.
void initialize(int rank, int ranks, const std::vector<std::uint8_t>& id);

void finalize();  // collective, after the last AllToAll is gone

}  // namespace mox
