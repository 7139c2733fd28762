// SPDX-License-Identifier: Apache-2.0
// What the generated table holds: operators, and for each the frozen entries that may compute it.
//
// Everything in these headers has internal linkage: several packages live in one process, each with its own
// copy.
#pragma once

#include <cstdint>

namespace coldforge {
namespace {

enum class Kind : int { cpu, cuda };

enum class DType : int { fp32, fp16, bf16, unsupported };

// One 8-byte word of a kernel's argument block: a pointer, a size or a scalar.
union Word {
  void* pointer;
  int64_t size;
  double scalar;
};

// The level of a variant that does not exist on this architecture.
constexpr int kNoLevel = 1000;

constexpr int kMaxWords = 64;
constexpr int kMaxTensors = 16;
constexpr int kMaxRank = 8;
constexpr int kMaxValues = 96;

// What the machine at hand adds to an expression's names.
struct Machine {
  int64_t sm_count = 1;  // multiprocessors of the GPU
  int64_t threads = 1;   // threads that PyTorch would use for one CPU operator
};

// How a kernel is started for one set of sizes. cuda reads grid, block, shared_bytes; cpu reads units, grain.
// finish_*: the same of the second kernel, which sees all that the first wrote; with 0 it is not started.
struct Launch {
  int64_t grid = 0;
  int64_t block = 0;
  int64_t shared_bytes = 0;
  int64_t units = 0;
  int64_t grain = 1;
  int64_t workspace_bytes = 0;
  int64_t zeroed_bytes = 0;  // at the start of the workspace: zero when the first kernel starts
  int64_t finish_grid = 0;
  int64_t finish_block = 0;
  int64_t finish_shared_bytes = 0;
  int64_t finish_units = 0;
  int64_t finish_grain = 1;
  int64_t work = 0;  // what its time is proportional to, but for what every call takes
};

// A cpu kernel computes the work units [begin, end): the signature of libtorch's parallel-for callback.
using CpuKernel = void (*)(int64_t begin, int64_t end, void* words);

// One compiled form of an entry; the number of a variant is its place in the whole package's list.
struct Variant {
  const char* name;  // "<entry>@x86-64-v3", "<entry>@sm_90", "<entry>@compute_80"
  int level;         // cpu: instruction-set level 2, 3, 4 (0: the architecture has no levels); cuda: compute
                     // capability
  CpuKernel function;          // cpu only
  const unsigned char* image;  // cuda only: the cubin, or PTX as a C string
  CpuKernel finish = nullptr;  // cpu only: the second kernel, where the source has one
  int ptx_isa = 0;  // of PTX: its version, 805 for 8.5; 0: machine code. PTX's `level` is the least
                    // compute capability that it may be compiled for
};

// What one call took.
struct Measured {
  const int64_t* sizes;  // the run-time sizes, in ABI order
  double time_ms;
  double work;  // `Launch::work` of that launch, on the device it was measured on
};

struct Entry {
  const char* name;
  Kind kind;
  const char* model;  // the device it was tuned on
  int level;          // the level or compute capability it was tuned for
  DType dtype;
  double precision_eps;  // unit roundoff of its error class
  int cuda_major;        // cuda only: major version of the compiler that made the cubin
  bool has_workspace;    // whether the argument block has a workspace word
  int first_variant;     // its variants, the preferred one first
  int variant_count;
  const Measured* measured;  // on that model: first at the tuned sizes, then at others
  int measured_count;
  bool (*covers)(const int64_t* values);  // whether the specialisation holds
  Launch (*launch)(const int64_t* values, const Machine& machine);
};

// The package's variants; the generated table defines them.
extern const Variant kVariants[];
extern const int kVariantCount;

// The sizes of all inputs of one call, as PyTorch reports them.
struct Shapes {
  int rank[kMaxTensors];  // -1: absent
  const int64_t* size[kMaxTensors];
};

struct Operator {
  const char* qualified_name;  // "namespace::name"
  const char* reference_name;  // "namespace::name_reference"
  int tensor_count;
  const bool* tensor_optional;
  int scalar_count;
  int attribute_count;
  const int* attribute_length;  // 0: an int, k: int[k]
  int value_count;
  const char* const* value_names;
  int size_count;          // run-time sizes, in ABI order
  const int* size_values;  // their places among the values
  int fixed_count;         // what a specialisation fixes, for messages
  const int* fixed_values;
  // Fills the values from shapes and attributes. Returns nothing, or why they do not fit ({NAME} stands for a
  // value).
  const char* (*bind)(const Shapes& shapes, const int64_t* attributes, int64_t element_bytes,
                      int64_t* values);
  int output_rank;
  void (*output_shape)(const int64_t* values, int64_t* shape);
  const Entry* entries;
  int entry_count;
};

}  // namespace
}  // namespace coldforge
