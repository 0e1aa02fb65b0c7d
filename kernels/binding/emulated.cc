// The C interface on the emulator, with one function more: all ranks of a run in one call, on the CPU.
//
// tests/test_kernels_python_emulated.py builds it and compares the kernels with the torch reference through it.
#include "emu.h"
#include "guarded.h"
#include "mox_c.h"

namespace {

int refuse(const mox_text& error) {
  mox::put_text(error, "the emulator starts its ranks by itself");
  return 1;
}

// By a rank of the emulator: an error ends the run.
void must(int status, const char* text) {
  if (status != 0) emu::fail(emu::FaultKind::failed, "%s", text);
}

}  // namespace

extern "C" {

int mox_unique_id(void*, size_t, size_t*, mox_text error) { return refuse(error); }
int mox_initialize(const void*, size_t, int, int, mox_text error) { return refuse(error); }
int mox_finalize(mox_text error) { return refuse(error); }

// Arrays are [epochs, ranks]: what each rank sends, where it receives, what its experts answer, where sums go.
MOX_C_EXPORT int mox_emulate(uint64_t seed, uint32_t epochs, const mox_shape* shape, const mox_options* options, const mox_dispatch_in* in,
                             const mox_dispatch_out* out, const void* const* rows, void* const* y, mox_text error) {
  return mox::guarded(error, [&] {
    emu::Config machine;
    machine.seed = seed;
    machine.pes = static_cast<int>(shape->ranks);
    machine.peer_percent = seed % 3 * 50;
    emu::run(machine, [&](int pe) {
      char text[1024];
      const mox_text said{text, sizeof text};
      mox_alltoall* kernels = mox_create(shape, options, said);
      must(kernels == nullptr, text);
      for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        const std::size_t i = std::size_t{epoch} * shape->ranks + static_cast<std::size_t>(pe);
        must(mox_dispatch_send(kernels, &in[i], nullptr, said), text);
        must(mox_dispatch_recv(kernels, &out[i], nullptr, said), text);
        must(mox_combine_send(kernels, rows[i], nullptr, said), text);
        must(mox_combine_recv(kernels, y[i], nullptr, said), text);
      }
      emu::synchronize_all();
      mox_failure failure;
      must(mox_get_failure(kernels, &failure), failure.message);
      mox_destroy(kernels);
    });
  });
}

}  // extern "C"
