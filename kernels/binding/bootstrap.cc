// Starting and stopping NVSHMEM, through the C interface.
#include "mox/bootstrap.h"

#include <cstring>
#include <string>
#include <vector>

#include "guarded.h"
#include "mox/failure.h"
#include "mox_c.h"

extern "C" {

int mox_unique_id(void* host_id, size_t room, size_t* bytes, mox_text error) {
  return mox::guarded(error, [&] {
    const std::vector<std::uint8_t> id = mox::unique_id();
    if (id.size() > room) throw mox::Error("unique_id: the id has " + std::to_string(id.size()) + " bytes, there is room for " + std::to_string(room));
    std::memcpy(host_id, id.data(), id.size());
    *bytes = id.size();
  });
}

int mox_initialize(const void* host_id, size_t bytes, int rank, int ranks, mox_text error) {
  return mox::guarded(error, [&] {
    const auto* id = static_cast<const std::uint8_t*>(host_id);
    mox::initialize(rank, ranks, {id, id + bytes});
  });
}

int mox_finalize(mox_text error) {
  return mox::guarded(error, [] { mox::finalize(); });
}

}  // extern "C"
