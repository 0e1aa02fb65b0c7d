// Everything linked for a GPU: prints the buffers of a shape, and runs nothing.
#include <cstdio>

#include "mox/alltoall.h"
#include "mox/bootstrap.h"

int main(int argc, char**) {
  const mox::Shape shape;
  std::printf("%s", mox::describe(shape).c_str());
  if (argc > 1) {
    mox::initialize(0, 1, mox::unique_id());
    {
      mox::AllToAll all(shape);
      all.dispatch_send({}, nullptr);
    }
    mox::finalize();
  }
}
