// SPDX-License-Identifier: Apache-2.0
// Which frozen variant computes a call: the key first, then the same device model, then what was tuned for
// these very sizes, then the least time that the entries' measurements at the nearest sizes let expect.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
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
  bool exact;  // tuned for the call's sizes
  double distance;
  double expected_ms;
};

// Whether each variant may be dispatched. All start disabled; the loader enables those that were verified.
inline std::atomic<unsigned char>* enabled_flags() {
  static std::vector<std::atomic<unsigned char>> flags(static_cast<size_t>(kVariantCount) + 1);
  return flags.data();
}

// Counts the changes of these flags.
inline std::atomic<uint64_t>& enabled_changes() {
  static std::atomic<uint64_t> number{0};
  return number;
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

// How often 2 divides a size, as far as that decides how wide a kernel may load and store.
inline int evenness(int64_t size) { return size % 4 == 0 ? 2 : size % 2 == 0 ? 1 : 0; }

// What a factor of two in one of two sizes alone counts for in their distance: kernels whose stores are wide
// lose up to half of their speed at odd sizes.
constexpr double kApartPerEvenness = 0.1;

// Distance of two workloads: the sum, over their run-time sizes, of |log2| of the ratio and of what they
// differ in evenness.
inline double distance(const Operator& op, const int64_t* sizes, const int64_t* values) {
  double sum = 0;
  for (int i = 0; i < op.size_count; ++i) {
    const int64_t now = values[op.size_values[i]], then = sizes[i];
    sum += std::fabs(std::log2((static_cast<double>(now) + 1) / (static_cast<double>(then) + 1)));
    sum += kApartPerEvenness * std::abs(evenness(now) - evenness(then));
  }
  return sum;
}

// The measurement of an entry at the sizes nearest to the call's, and how far it is.
struct Nearest {
  const Measured* at;
  double distance;
};

inline Nearest nearest(const Operator& op, const Entry& entry, const int64_t* values) {
  Nearest found{entry.measured, distance(op, entry.measured->sizes, values)};
  for (const Measured* one = entry.measured + 1; one < entry.measured + entry.measured_count; ++one) {
    const double apart = distance(op, one->sizes, values);
    if (apart < found.distance) found = {one, apart};
  }
  return found;
}

// What a call takes on a GPU however little it computes: an H200 takes 0.011 ms for the smallest images. It
// counts for fewer pixels than were measured, and not for more of them: of a time that is mostly the launch's
// nothing follows for the rest. So either expectation is rather too long than too short.
constexpr double kSmallestMs = 0.011;

// How much of a time may at most be the launch's: another GPU's may take less.
constexpr double kMostLaunch = 0.8;

// By how much an expectation is raised for each doubling of a size that lies between it and its measurement.
// So much that what was measured at the nearest sizes decides, unless the work says otherwise by far: by the
// measurements of a search for 59 sizes of a convolution on an H200, each taken for one that was not tuned.
constexpr double kDoubtPerDoubling = 0.3;

// The time that a measurement of an entry lets expect at the call's sizes: all but the launch grows with the
// work. The farther away a measurement is, the less it says.
inline double expected_ms(const Request& request, const Entry& entry, const Nearest& near) {
  if (request.nothing) return 0.0;
  const double work = static_cast<double>(entry.launch(request.values, request.machine).work);
  const double ratio = work / std::max(near.at->work, 1.0);
  const double least = request.kind == Kind::cuda && ratio < 1.0 ? kSmallestMs : 0.0;
  const double fixed = std::min(least, kMostLaunch * near.at->time_ms);
  return (fixed + (near.at->time_ms - fixed) * ratio) * (1.0 + kDoubtPerDoubling * near.distance);
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
  if (a.exact != b.exact) return a.exact;
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
    const Nearest near = nearest(op, entry, request.values);
    const bool exact = near.at == entry.measured && near.distance == 0;
    const Candidate candidate{&entry, number,        model_rank(request, entry, variants[number]),
                              exact,  near.distance, expected_ms(request, entry, near)};
    size_t at = 0;
    while (at < found.size() && !better(candidate, found[at])) ++at;
    found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), candidate);
  }
  return found;
}

// What was selected lately, so that a call of sizes that were seen does not look at every entry again: a
// sweep freezes some dozens, each measured at some dozens of sizes. Any request may take any place, so that
// no two shapes of a model drive each other out as long as there is room.
class Memory {
 public:
  // What `select` gives. Valid until the thread asks again.
  const std::vector<Candidate>& selected(const Operator& op, const Variant* variants,
                                         const Request& request) {
    if (forced_variant() >= 0) return forced_ = select(op, variants, request);
    const uint64_t changes = enabled_changes();
    if (changes != changes_) {
      hashes_.clear();
      places_.clear();
      changes_ = changes;
    }
    const uint64_t hash = hash_of(op, request);
    for (size_t i = 0; i < hashes_.size(); ++i) {
      if (hashes_[i] == hash && places_[i].is(op, request)) return places_[i].found;
    }
    Place place(op, request, select(op, variants, request));
    if (places_.size() < kPlaces) {
      hashes_.reserve(kPlaces);  // what throws comes first: both stay of one length
      places_.push_back(std::move(place));
      hashes_.push_back(hash);
      return places_.back().found;
    }
    const size_t taken = (hash >> 32) % kPlaces;  // not the oldest: shapes that come in turns would all miss
    hashes_[taken] = hash;
    places_[taken] = std::move(place);
    return places_[taken].found;
  }

 private:
  static constexpr size_t kPlaces = 128;

  // A request without its pointers, and what was found.
  struct Place {
    const Operator* op;
    Request request;
    std::string model;
    std::vector<int64_t> values;
    std::vector<Candidate> found;

    Place(const Operator& of, const Request& now, std::vector<Candidate> selected)
        : op(&of),
          request(now),
          model(*now.model),
          values(now.values, now.values + of.value_count),
          found(std::move(selected)) {
      request.model = nullptr;
      request.values = nullptr;
    }
    bool is(const Operator& other, const Request& now) const {
      return op == &other && request.kind == now.kind && request.dtype == now.dtype &&
             request.precision_eps == now.precision_eps && request.level == now.level &&
             model == *now.model && request.driver == now.driver &&
             request.max_shared_bytes == now.max_shared_bytes &&
             request.machine.sm_count == now.machine.sm_count &&
             request.machine.threads == now.machine.threads && request.nothing == now.nothing &&
             std::equal(values.begin(), values.end(), now.values);
    }
  };

  static uint64_t hash_of(const Operator& op, const Request& request) {
    uint64_t hash = reinterpret_cast<uintptr_t>(&op) + static_cast<uint64_t>(request.dtype);
    for (int i = 0; i < op.value_count; ++i)
      hash = (hash ^ static_cast<uint64_t>(request.values[i])) * 0x9e3779b97f4a7c15u;
    return hash;
  }

  uint64_t changes_ = 0;
  std::vector<uint64_t> hashes_;  // of `places_`: looked through first
  std::vector<Place> places_;
  std::vector<Candidate> forced_;
};

inline const std::vector<Candidate>& selected(const Operator& op, const Variant* variants,
                                              const Request& request) {
  static thread_local Memory memory;
  return memory.selected(op, variants, request);
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
    const std::vector<Candidate>& found = selected(*op, kVariants, request);
    return found.empty() ? -1 : found.front().number;
  }
  return -2;
}

}  // namespace
}  // namespace coldforge
