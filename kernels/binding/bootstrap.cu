// Starting and stopping NVSHMEM. Its device state belongs to this library, so it is started from here and nowhere else.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>
#include <string>

#include "guarded.h"
#include "mox/failure.h"
#include "mox_c.h"

namespace {

void must(int status, const char* what) {
  if (status != 0) throw mox::Error(std::string(what) + " returned " + std::to_string(status) + "; NVSHMEM_DEBUG=INFO says more");
}

}  // namespace

extern "C" {

size_t mox_unique_id_bytes(void) { return sizeof(nvshmemx_uniqueid_t); }

int mox_unique_id(void* host_id, mox_text error) {
  return mox::guarded(error, [&] {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    must(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
    std::memcpy(host_id, &id, sizeof id);
  });
}

int mox_initialize(const void* host_id, int rank, int ranks, mox_text error) {
  return mox::guarded(error, [&] {
    nvshmemx_uniqueid_t id;
    std::memcpy(&id, host_id, sizeof id);
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    must(nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes), "nvshmemx_set_attr_uniqueid_args");
    must(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes), "nvshmemx_init_attr");
  });
}

int mox_finalize(mox_text error) {
  return mox::guarded(error, [] { nvshmem_finalize(); });
}

}  // extern "C"
