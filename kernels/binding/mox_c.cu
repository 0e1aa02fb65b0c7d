// The C interface: every exception of the C++ one becomes a status and a line of text.
#include "mox_c.h"

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "mox/alltoall.h"

namespace {

void put_text(const mox_text& to, const std::string& text) {
  if (to.size == 0) return;
  const std::size_t n = std::min(to.size - 1, text.size());
  std::memcpy(to.text, text.data(), n);
  to.text[n] = '\0';
}

template <std::size_t N>
void put_text(char (&to)[N], const std::string& text) {
  put_text(mox_text{to, N}, text);
}

// Runs f; what it throws becomes the error's text.
template <class F>
int guarded(const mox_text& error, F f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    put_text(error, e.what());
    return 1;
  }
}

mox::Shape shape_of(const mox_shape& s) {
  mox::Shape shape;
  shape.ranks = s.ranks;
  shape.experts = s.experts;
  shape.top_k = s.top_k;
  shape.max_tokens = s.max_tokens;
  shape.hidden = s.hidden;
  shape.dispatch = static_cast<mox::DType>(s.dispatch);
  shape.expert_out = static_cast<mox::DType>(s.expert_out);
  shape.combine = static_cast<mox::DType>(s.combine);
  shape.wire_fp32 = s.wire_fp32 != 0;
  shape.dp = s.dp;
  shape.row_capacity = s.row_capacity;
  shape.row_align = s.row_align;
  shape.self_put = s.self_put != 0;
  const std::string wrong = mox::check(shape);
  if (!wrong.empty()) throw mox::Error(wrong);
  return shape;
}

void must(int status, const char* what) {
  if (status != 0) throw mox::Error(std::string(what) + " returned " + std::to_string(status) + "; NVSHMEM_DEBUG=INFO says more");
}

cudaStream_t stream_of(void* s) { return static_cast<cudaStream_t>(s); }

}  // namespace

struct mox_alltoall {
  mox::AllToAll kernels;
};

extern "C" {

int mox_c_abi(void) { return MOX_C_ABI; }

const char* mox_build(void) { return "nvshmem " MOX_BUILD_NVSHMEM "; cuda " MOX_BUILD_CUDA "; architectures " MOX_BUILD_ARCHITECTURES; }

int mox_check(const mox_shape* s, mox_text error) {
  return guarded(error, [&] { shape_of(*s); });
}

int mox_get_sizes(const mox_shape* s, mox_sizes* out, mox_text error) {
  return guarded(error, [&] {
    const mox::Layout l = mox::layout_of(shape_of(*s));
    *out = {l.bytes, l.packet_bytes, l.partial_bytes, l.manifest_bytes, l.result_bytes, l.capacity, l.slots};
  });
}

int mox_describe(const mox_shape* s, mox_text out, mox_text error) {
  return guarded(error, [&] { put_text(out, mox::describe(shape_of(*s))); });
}

size_t mox_unique_id_bytes(void) { return sizeof(nvshmemx_uniqueid_t); }

int mox_unique_id(void* host_id, mox_text error) {
  return guarded(error, [&] {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    must(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
    std::memcpy(host_id, &id, sizeof id);
  });
}

int mox_initialize(const void* host_id, int rank, int ranks, mox_text error) {
  return guarded(error, [&] {
    nvshmemx_uniqueid_t id;
    std::memcpy(&id, host_id, sizeof id);
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    must(nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes), "nvshmemx_set_attr_uniqueid_args");
    must(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes), "nvshmemx_init_attr");
  });
}

int mox_finalize(mox_text error) {
  return guarded(error, [] { nvshmem_finalize(); });
}

mox_alltoall* mox_create(const mox_shape* s, const mox_options* o, mox_text error) {
  mox_alltoall* made = nullptr;
  guarded(error, [&] { made = new mox_alltoall{mox::AllToAll(shape_of(*s), mox::Options{o->timeout_ms, o->blocks, o->threads})}; });
  return made;
}

void mox_destroy(mox_alltoall* a) { delete a; }

int mox_dispatch_send(mox_alltoall* a, const mox_dispatch_in* in, void* stream, mox_text error) {
  return guarded(error, [&] {
    a->kernels.dispatch_send({in->x, in->scales, in->experts, in->experts_are_int64 != 0, in->weights, in->tokens, in->bound_m}, stream_of(stream));
  });
}

int mox_dispatch_recv(mox_alltoall* a, const mox_dispatch_out* out, void* stream, mox_text error) {
  return guarded(error, [&] { a->kernels.dispatch_recv({out->rows, out->scales, out->counts, out->starts, out->row_source}, stream_of(stream)); });
}

int mox_combine_send(mox_alltoall* a, const void* rows, void* stream, mox_text error) {
  return guarded(error, [&] { a->kernels.combine_send(rows, stream_of(stream)); });
}

int mox_combine_recv(mox_alltoall* a, void* y, void* stream, mox_text error) {
  return guarded(error, [&] { a->kernels.combine_recv(y, stream_of(stream)); });
}

int mox_get_failure(const mox_alltoall* a, mox_failure* out) {
  const auto failure = a->kernels.failure();
  if (!failure) return 0;
  using mox::Phase;
  const mox::Failure& f = *failure;
  const bool is_wait = f.phase != Phase::header && f.phase != Phase::capacity && f.phase != Phase::routing;
  *out = {{}, {}, f.epoch, f.wanted, f.found, f.rank, f.peer, f.token, is_wait};
  put_text(out->phase, mox::name_of(f.phase));
  put_text(out->message, mox::message(f));
  return 1;
}

}  // extern "C"
