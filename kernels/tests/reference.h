// What dispatch and combine must do, in plain loops over all ranks at once. Written from the interface, not
// from the kernels; it shares with them only the conversions of dtype.h, which tests/library.cc checks on
// their own.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "case.h"
#include "mox/layout.h"

struct Row {
  std::uint32_t source, token;  // token on its source
};

struct Reference {
  const Case& c;
  std::vector<Input> groups;  // one for each group of ranks

  Reference(const Case&, std::uint32_t object, std::uint32_t epoch);

  const Input& of(std::uint32_t rank) const { return groups[rank / c.shape.dp]; }
  std::uint32_t home(std::int32_t expert) const;
  // rows of one expert, in order
  std::vector<Row> rows(std::uint32_t expert) const;
  // distinct homes of a token, ascending
  std::vector<std::uint32_t> ranks_of(const Input&, std::uint32_t token) const;
  // what expert e makes of element d of a token, before it is stored as expert_out
  float expert(std::uint32_t e, const Input&, std::uint32_t token, std::uint32_t d) const;

  struct Sum {
    float value;          // in the library's order and precision
    double exact, bound;  // in double; how far the library may be from it
  };
  Sum combined(const Input&, std::uint32_t token, std::uint32_t d) const;

  // bytes that puts carry between different ranks, and in all
  std::pair<std::uint64_t, std::uint64_t> bytes() const;
};

// element d of a row of `type`, as fp32
float element(const std::byte* row, mox::DType type, std::uint32_t d);
void store_element(std::byte* row, mox::DType type, std::uint32_t d, float value);
float rounded(float v, mox::DType type);
