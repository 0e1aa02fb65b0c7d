// The C interface: every exception of the C++ one becomes a status and a line of text.
#include "mox_c.h"

#include <string>

#include "guarded.h"
#include "mox/alltoall.h"

namespace {

template <std::size_t N>
void put_text(char (&to)[N], const std::string& text) {
  mox::put_text(mox_text{to, N}, text);
}

using mox::guarded;

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
  return guarded(error, [&] { mox::put_text(out, mox::describe(shape_of(*s))); });
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
