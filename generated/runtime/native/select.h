// SPDX-License-Identifier: Apache-2.0
// Which frozen variant computes a call: the key first, then the same device model, then the nearest tuned
// workload.
#pragma once

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "cpu.h"
#include "entry.h"

namespace coldforge {
namespace {

// What a call asks for.
struct Request {
  Kind kind;
  DType dtype;
  double precision_eps;      // the weakest error class that may answer
  int level;                 // cpu: instruction-set level; cuda: compute capability
  const std::string* model;  // the device's name
  const int64_t* values;
};

struct Candidate {
  const Entry* entry;
  int number;  // of the variant, in the package's list
  int model_rank;
  double distance;
};

// Whether each variant may be dispatched. All start disabled; the loader enables those that were verified.
inline std::atomic<unsigned char>* enabled_flags() {
  static std::vector<std::atomic<unsigned char>> flags(static_cast<size_t>(kVariantCount) + 1);
  return flags.data();
}

// A variant that this thread wants to run whatever the flags say (-1: none), and the one that it ran last.
inline int& forced_variant() {
  static thread_local int number = -1;
  return number;
}

inline int& last_variant() {
  static thread_local int number = -1;
  return number;
}

// Distance of two workloads: the sum of |log2| of the ratios of their run-time sizes.
inline double distance(const Operator& op, const Entry& entry, const int64_t* values) {
  double sum = 0;
  for (int i = 0; i < op.size_count; ++i) {
    const double now = static_cast<double>(values[op.size_values[i]]) + 1;
    sum += std::fabs(std::log2(now / (static_cast<double>(entry.workload[i]) + 1)));
  }
  return sum;
}

// cuda: the model it was tuned on, then others of the same architecture. cpu: the same model, then the
// entries tuned at the highest level that this CPU has, then (in their portable build) those tuned for a
// newer CPU.
inline int model_rank(const Request& request, const Entry& entry) {
  if (*request.model == entry.model) return 0;
  if (request.kind == Kind::cuda) return 1;
  return entry.level <= request.level ? 1 + (8 - entry.level) : 16 + entry.level;
}

// The first variant of an entry that runs on this device and is enabled; -1 when there is none.
inline int usable_variant(const Request& request, const Entry& entry, const Variant* variants) {
  for (int number = entry.first_variant; number < entry.first_variant + entry.variant_count; ++number) {
    const int level = variants[number].level;
    const bool runs = request.kind == Kind::cuda ? level == request.level : level <= request.level;
    const bool allowed = forced_variant() >= 0 ? forced_variant() == number : enabled_flags()[number] != 0;
    if (runs && allowed) return number;
  }
  return -1;
}

inline bool better(const Candidate& a, const Candidate& b) {
  if (a.model_rank != b.model_rank) return a.model_rank < b.model_rank;
  if (a.distance != b.distance) return a.distance < b.distance;
  return a.entry->time_ms < b.entry->time_ms;
}

// All that may answer, the best first. `refused` names those whose frozen code must not run here.
inline std::vector<Candidate> select(const Operator& op, const Variant* variants, const Request& request,
                                     std::string& refused) {
  std::vector<Candidate> found;
  for (int i = 0; i < op.entry_count; ++i) {
    const Entry& entry = op.entries[i];
    if (entry.kind != request.kind || entry.dtype != request.dtype) continue;
    if (entry.precision_eps > request.precision_eps || !entry.covers(request.values)) continue;
    if (entry.kind == Kind::cuda && entry.level != request.level) continue;
    const int number = usable_variant(request, entry, variants);
    if (number < 0) {
      refused += std::string(refused.empty() ? "" : ", ") + entry.name;
      continue;
    }
    const Candidate candidate{&entry, number, model_rank(request, entry),
                              distance(op, entry, request.values)};
    size_t at = 0;
    while (at < found.size() && !better(candidate, found[at])) ++at;
    found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), candidate);
  }
  return found;
}

// Whether a GPU's driver takes a cubin of that compiler; one of an older CUDA does not know its format.
inline bool driver_takes(const Entry& entry, int driver_cuda_major) {
  return entry.cuda_major <= driver_cuda_major;
}

// The package's operators.
inline std::vector<const Operator*>& operators() {
  static std::vector<const Operator*> all;
  return all;
}

inline bool list_operator(const Operator& op) {
  operators().push_back(&op);
  return true;
}

// The variant that would answer first, -1 for the reference, -2 for an operator that is not there. Depends on
// nothing but its arguments and on which variants are enabled.
inline int choose(const std::string& qualified_name, const Request& request, int driver_cuda_major) {
  for (const Operator* op : operators()) {
    if (qualified_name != op->qualified_name) continue;
    std::string refused;
    for (const Candidate& candidate : select(*op, kVariants, request, refused)) {
      if (request.kind == Kind::cpu || driver_takes(*candidate.entry, driver_cuda_major))
        return candidate.number;
    }
    return -1;
  }
  return -2;
}

}  // namespace
}  // namespace coldforge
