/* The C interface of the GPU library, loaded by moxtrace_kernels/library.py with ctypes; nothing here needs Python or
 * torch. Pointers are device pointers unless named otherwise, streams are cudaStream_t. Functions that can fail return
 * 0, or 1 with one line in `error`. Number MOX_C_ABI goes up with every change of a struct or a signature. */
#ifndef MOX_C_H
#define MOX_C_H
#include <stddef.h>
#include <stdint.h>

#define MOX_C_ABI 1
#define MOX_C_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { /* mox::Shape; dtypes: 0 bf16, 1 fp16, 2 fp32, 3 fp8 */
  uint32_t ranks, experts, top_k, max_tokens, hidden, dispatch, expert_out, combine, wire_fp32, dp, row_capacity, row_align, self_put;
} mox_shape;

typedef struct { /* mox::Options */
  uint32_t timeout_ms, blocks, threads;
} mox_options;

typedef struct { /* mox::DispatchIn */
  const void* x;
  const float* scales;
  const void* experts;
  const float* weights;
  const int32_t* bound_m;
  uint32_t experts_are_int64, tokens;
} mox_dispatch_in;

typedef struct { /* mox::DispatchOut */
  void* rows;
  float* scales;
  int32_t* counts;
  int32_t* starts;
  int32_t* row_source;
} mox_dispatch_out;

typedef struct { /* mox::Failure; token is 0xffffffff for none */
  char phase[32];
  char message[480];
  uint64_t epoch, wanted, found;
  uint32_t rank, peer, token, is_wait;
} mox_failure;

typedef struct { /* what mox::Layout says about one shape, in bytes */
  uint64_t symmetric, packet, partial, manifest, result;
  uint32_t capacity, slots;
} mox_sizes;

typedef struct {
  char* text; /* at least `size` bytes, ended by 0 */
  size_t size;
} mox_text;

typedef struct mox_alltoall mox_alltoall;

MOX_C_EXPORT int mox_c_abi(void);
/* "nvshmem 3.4.5; cuda 13.0.88; architectures 90-real 100-real" */
MOX_C_EXPORT const char* mox_build(void);

/* of a shape; neither a GPU nor NVSHMEM has to be there */
MOX_C_EXPORT int mox_check(const mox_shape*, mox_text error);
MOX_C_EXPORT int mox_get_sizes(const mox_shape*, mox_sizes*, mox_text error);
MOX_C_EXPORT int mox_describe(const mox_shape*, mox_text out, mox_text error);

/* NVSHMEM: one rank makes an id, every rank initializes with it, on the current device */
MOX_C_EXPORT int mox_unique_id(void* host_id, size_t room, size_t* bytes, mox_text error);
MOX_C_EXPORT int mox_initialize(const void* host_id, size_t bytes, int rank, int ranks, mox_text error);
MOX_C_EXPORT int mox_finalize(mox_text error);

MOX_C_EXPORT mox_alltoall* mox_create(const mox_shape*, const mox_options*, mox_text error); /* NULL: see error */
MOX_C_EXPORT void mox_destroy(mox_alltoall*);
MOX_C_EXPORT int mox_dispatch_send(mox_alltoall*, const mox_dispatch_in*, void* stream, mox_text error);
MOX_C_EXPORT int mox_dispatch_recv(mox_alltoall*, const mox_dispatch_out*, void* stream, mox_text error);
MOX_C_EXPORT int mox_combine_send(mox_alltoall*, const void* rows, void* stream, mox_text error);
MOX_C_EXPORT int mox_combine_recv(mox_alltoall*, void* y, void* stream, mox_text error);
MOX_C_EXPORT int mox_get_failure(const mox_alltoall*, mox_failure*); /* 1: a kernel failed */

#ifdef __cplusplus
}
#endif
#endif
