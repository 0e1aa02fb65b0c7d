#include "mox/bootstrap.h"

#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>
#include <string>

#include "mox/failure.h"

namespace mox {
namespace {

void must(int status, const std::string& what) {
  if (status != 0)
    throw Error(what + " returned " + std::to_string(status) + "; NVSHMEM_DEBUG=INFO says more");
}

}  // namespace

std::vector<std::uint8_t> unique_id() {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  must(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
  std::vector<std::uint8_t> bytes(sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

void initialize(int rank, int ranks, const std::vector<std::uint8_t>& bytes) {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  if (bytes.size() != sizeof id)
    throw Error("initialize: the unique id has " + std::to_string(bytes.size()) + " bytes, expected " +
                std::to_string(sizeof id) + "; all ranks need the same NVSHMEM");
  std::memcpy(&id, bytes.data(), sizeof id);
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  must(nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes), "nvshmemx_set_attr_uniqueid_args");
  must(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes), "nvshmemx_init_attr");
}

void finalize() {
  nvshmem_finalize();
}

}  // namespace mox
