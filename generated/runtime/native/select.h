// SPDX-License-Identifier: Apache-2.0
// Which frozen variant computes a call: the key first, then the same device model, then what was tuned for
// these very sizes, then the least time that the entries' own measurements let expect.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
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
  int driver = 0;                // cuda: the driver's CUDA version, 13000 for 13.0
  int64_t max_shared_bytes = 0;  // cuda: of a block
  Machine machine{};
  bool nothing = false;  // the output has no elements: nothing is launched, and no launch can be computed
};

struct Candidate {
  const Entry* entry;
  int number;  // of the variant, in the package's list
  int model_rank;
  double distance;
  double expected_ms;
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

// Whether a call's output has no elements.
inline bool writes_nothing(const Operator& op, const int64_t* values) {
  int64_t shape[kMaxRank] = {};
  op.output_shape(values, shape);
  for (int i = 0; i < op.output_rank; ++i) {
    if (shape[i] == 0) return true;
  }
  return false;
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

// What a call takes on a GPU however little it computes: an H200 takes 0.011 ms for the smallest images, and
// more than half of that for the launch alone. For fewer pixels than measured the former counts, for more of
// them the latter, so that either expectation is rather too long than too short.
constexpr double kSmallestMs = 0.011;
constexpr double kLaunchMs = 0.006;

// How much of a time may at most be the launch's: another GPU's may take less.
constexpr double kMostLaunch = 0.8;

// By how much an expectation is raised for each doubling of a size that lies between it and its measurement.
constexpr double kDoubtPerDoubling = 0.03;

// The time that an entry's measurement lets expect at the call's sizes: all but the launch grows with the
// work. Seven sizes of three frozen convolutions on an H200 were expected within 12 %. The farther away a
// measurement is, the less it says, so near ones win where the expectations are close.
inline double expected_ms(const Request& request, const Entry& entry, double distance) {
  if (request.nothing) return 0.0;
  const double work = static_cast<double>(entry.launch(request.values, request.machine).work);
  const double ratio = work / std::max(entry.work, 1.0);
  const double least = request.kind == Kind::cpu ? 0.0 : ratio < 1.0 ? kSmallestMs : kLaunchMs;
  const double fixed = std::min(least, kMostLaunch * entry.time_ms);
  return (fixed + (entry.time_ms - fixed) * ratio) * (1.0 + kDoubtPerDoubling * distance);
}

// cuda: the model it was tuned on, then others of the same architecture, then what the driver compiles from
// PTX, tuned on the nearest architecture. cpu: the same model, then the entries tuned at the highest level
// that this CPU has, then (in their portable build) those tuned for a newer CPU.
inline int model_rank(const Request& request, const Entry& entry, const Variant& variant) {
  if (variant.ptx_isa != 0) return 2 + std::abs(entry.level - request.level);
  if (*request.model == entry.model) return 0;
  if (request.kind == Kind::cuda) return 1;
  return entry.level <= request.level ? 1 + (8 - entry.level) : 16 + entry.level;
}

// The newest PTX that a driver compiles, as `Variant::ptx_isa`; by the release history in NVIDIA's PTX
// manual: 12.4 takes 8.4, 12.9 takes 8.8 (12.6 brought none), 13.0 takes 9.0.
inline int ptx_taken(int driver) {
  const int major = driver / 1000, minor = driver % 1000 / 10;
  if (major >= 13) return 100 * (major - 4) + minor;
  if (major == 12) return 800 + (minor <= 5 ? minor : minor - 1);
  return major == 11 ? 700 + minor : 0;
}

// Why nothing of an entry may answer: what was not found right here (in `off`), and what the driver or the
// GPU does not take.
struct Refusals {
  std::string off;
  std::string unfit;
};

// Whether the variant is code for that device at all.
inline bool is_code_for(const Request& request, const Entry& entry, const Variant& variant) {
  if (request.kind == Kind::cpu || variant.ptx_isa != 0) return variant.level <= request.level;
  return variant.level == request.level && entry.level == request.level;
}

// Why the driver or the GPU cannot take a variant that is code for it; nothing where they can.
inline std::string misfit(const Request& request, const Entry& entry, const Variant& variant) {
  if (request.kind == Kind::cpu) return "";
  if (variant.ptx_isa == 0) {  // an older driver does not know the cubin's format
    const int major = request.driver / 1000;
    if (entry.cuda_major <= major) return "";
    return std::string(entry.name) + " was compiled for CUDA " + std::to_string(entry.cuda_major) +
           " and the driver is for " + std::to_string(major);
  }
  const int taken = ptx_taken(request.driver);
  const auto version = [](int isa) { return std::to_string(isa / 100) + "." + std::to_string(isa % 100); };
  if (variant.ptx_isa > taken) {
    return std::string(entry.name) + " is PTX " + version(variant.ptx_isa) + " and the driver takes " +
           version(taken);
  }
  if (request.nothing) return "";
  // Tuned on another architecture, which may have had more of it.
  const Launch launch = entry.launch(request.values, request.machine);
  const int64_t shared = std::max(launch.shared_bytes, launch.finish_shared_bytes);
  if (shared <= request.max_shared_bytes) return "";
  return std::string(entry.name) + " needs " + std::to_string(shared) +
         " bytes of shared memory and the GPU has " + std::to_string(request.max_shared_bytes);
}

// The first variant of an entry that runs on this device and is enabled; -1 when there is none. Texts are
// made only where `refusals` asks for them: a call that is answered pays for none.
inline int usable_variant(const Request& request, const Entry& entry, const Variant* variants,
                          Refusals* refusals) {
  const auto add = [](std::string& all, const std::string& one) { all += (all.empty() ? "" : ", ") + one; };
  std::string why;
  bool off = false;
  for (int number = entry.first_variant; number < entry.first_variant + entry.variant_count; ++number) {
    if (!is_code_for(request, entry, variants[number])) continue;
    const bool allowed = forced_variant() >= 0 ? forced_variant() == number : enabled_flags()[number] != 0;
    if (!allowed && refusals == nullptr) continue;
    std::string unfit = misfit(request, entry, variants[number]);
    if (unfit.empty() && allowed) return number;
    off = off || unfit.empty();
    if (why.empty()) why = std::move(unfit);
  }
  if (refusals != nullptr && off) add(refusals->off, entry.name);
  if (refusals != nullptr && !off && !why.empty()) add(refusals->unfit, why);
  return -1;
}

inline bool better(const Candidate& a, const Candidate& b) {
  if (a.model_rank != b.model_rank) return a.model_rank < b.model_rank;
  if ((a.distance == 0) != (b.distance == 0)) return a.distance == 0;
  if (a.expected_ms != b.expected_ms) return a.expected_ms < b.expected_ms;
  return a.distance < b.distance;
}

// All that may answer, the best first.
inline std::vector<Candidate> select(const Operator& op, const Variant* variants, const Request& request,
                                     Refusals* refusals = nullptr) {
  std::vector<Candidate> found;
  for (int i = 0; i < op.entry_count; ++i) {
    const Entry& entry = op.entries[i];
    if (entry.kind != request.kind || entry.dtype != request.dtype) continue;
    if (entry.precision_eps > request.precision_eps || !entry.covers(request.values)) continue;
    const int number = usable_variant(request, entry, variants, refusals);
    if (number < 0) continue;
    const double apart = distance(op, entry, request.values);
    const Candidate candidate{&entry, number, model_rank(request, entry, variants[number]), apart,
                              expected_ms(request, entry, apart)};
    size_t at = 0;
    while (at < found.size() && !better(candidate, found[at])) ++at;
    found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), candidate);
  }
  return found;
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
inline int choose(const std::string& qualified_name, Request request) {
  for (const Operator* op : operators()) {
    if (qualified_name != op->qualified_name) continue;
    request.nothing = writes_nothing(*op, request.values);
    const std::vector<Candidate> found = select(*op, kVariants, request);
    return found.empty() ? -1 : found.front().number;
  }
  return -2;
}

}  // namespace
}  // namespace coldforge
