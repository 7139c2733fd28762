// SPDX-License-Identifier: Apache-2.0
// The kernel that PyTorch calls: choose a variant, run it, or hand the call to the reference with the reason.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>
#include <vector>

#include "call.h"
#include "cpu.h"
#include "cuda.h"
#include "select.h"
#include "tensor.h"

namespace coldforge {
namespace {

inline const char* dtype_name(DType dtype) {
  static const char* const names[] = {"fp32", "fp16", "bf16", "this dtype"};
  return names[static_cast<int>(dtype)];
}

// Calls `<op>_reference`, which takes the same arguments and the reason, and owns them from here on.
inline StableIValue run_reference(const Operator& op, Call& call, const std::string& reason) {
  last_variant() = -1;
  std::vector<StableIValue> arguments = call.take();
  arguments.push_back(torch::stable::detail::from(reason));
  check(torch_call_dispatcher(op.reference_name, "", arguments.data(), TORCH_ABI_VERSION), op.reference_name);
  return arguments[0];
}

// What a missing entry would have to cover, e.g. "cpu (AMD EPYC), fp32: C_in=8 C_out=64".
inline std::string describe(const Operator& op, const Request& request) {
  std::string text = std::string(request.kind == Kind::cpu ? "cpu" : "sm_" + std::to_string(request.level)) +
                     " (" + *request.model + "), " + dtype_name(request.dtype) + ":";
  for (int i = 0; i < op.fixed_count; ++i) {
    const int place = op.fixed_values[i];
    text += std::string(" ") + op.value_names[place] + "=" + std::to_string(request.values[place]);
  }
  return text;
}

// Fills the argument block, and starts the kernel. Returns why it could not, or nothing.
inline std::string run_candidate(const Operator& op, const Candidate& candidate, const Call& call,
                                 const Place& place, Gpu* gpu, const Request& request,
                                 AtenTensorHandle output) {
  const Entry& entry = *candidate.entry;
  const int64_t* values = request.values;
  const Launch launch = entry.launch(values, request.machine);
  if (launch.zeroed_bytes > launch.workspace_bytes) return "it would zero more than its workspace";
  Word words[kMaxWords];
  OwnedTensor copies[kMaxTensors], owned;
  void* workspace = nullptr;
  int used = 0;
  for (int i = 0; i < op.tensor_count; ++i) {
    words[used++].pointer = call.tensor(i) ? kernel_data(call.tensor(i), entry.kind, copies[i]) : nullptr;
  }
  words[used++].pointer = data_of(output);
  if (entry.has_workspace) {
    if (launch.workspace_bytes > 0) {
      owned = empty(&launch.workspace_bytes, 1, aoti_torch_dtype_uint8(), place);
      workspace = data_of(owned.get());
    }
    words[used++].pointer = workspace;
  }
  for (int i = 0; i < op.size_count; ++i) words[used++].size = values[op.size_values[i]];
  for (const double scalar : call.scalars()) words[used++].scalar = scalar;
  const Variant& variant = kVariants[candidate.number];
  if (entry.kind == Kind::cuda)
    return run_on_gpu(place.index, *gpu, candidate.number, variant, launch, words, workspace);
  return run_on_cpu(variant, launch, words, workspace);
}

struct Answer {
  OwnedTensor output;
  std::string reason;  // why there is no output
};

inline Answer no_answer(std::string reason) { return Answer{nullptr, std::move(reason)}; }

// Fills what the device decides: its level or capability, its model, its processors.
inline std::string fill_device(const Place& place, Request& request, Gpu*& gpu) {
  if (request.kind == Kind::cpu) {
    request.level = cpu_level();
    request.model = &cpu_model();
    request.machine.threads = cpu_threads();
    return "";
  }
  gpu = &gpu_at(place.index, kVariantCount);
  request.level = gpu->capability;
  request.model = &gpu->model;
  request.driver = gpu->driver;
  request.max_shared_bytes = gpu->max_shared_bytes;
  request.machine.sm_count = gpu->sm_count;
  return gpu->why;
}

// Kernels hold each run-time size in 31 bits; products of them need not fit. And they expect one of each
// where there is something to write. Returns nothing, or which size does not fit.
inline std::string unfit_size(const Operator& op, const int64_t* values, bool nothing) {
  for (int i = 0; i < op.size_count; ++i) {
    const int place = op.size_values[i];
    const std::string text = std::string(op.value_names[place]) + "=" + std::to_string(values[place]);
    if (values[place] > INT32_MAX) return text + " is too large for a frozen kernel";
    if (values[place] < 1 && !nothing) return text + " is too small for a frozen kernel";
  }
  return "";
}

inline Answer answer(const Operator& op, const Call& call) {
  const Place place = place_of(call.first());
  const int32_t dtype = dtype_code_of(call.first());
  Request request{};
  request.kind = place.type == aoti_torch_device_type_cuda() ? Kind::cuda : Kind::cpu;
  request.dtype = dtype_from_code(dtype);
  const double asked = call.precision() ? eps_of_precision(*call.precision()) : eps_of_dtype(request.dtype);
  request.precision_eps = asked;
  int64_t values[kMaxValues] = {};
  if (request.dtype == DType::unsupported)
    return no_answer("frozen kernels compute in fp32, fp16 and bf16 only");
  if (asked < 0) return no_answer("unknown precision '" + *call.precision() + "'");
  request.values = values;
  std::string reason = call.bind(values);
  if (!reason.empty()) return no_answer(std::move(reason));
  Gpu* gpu = nullptr;
  reason = fill_device(place, request, gpu);
  if (!reason.empty()) return no_answer(std::move(reason));

  int64_t shape[kMaxRank] = {};
  op.output_shape(values, shape);
  request.nothing = writes_nothing(op, values);
  if (!(reason = unfit_size(op, values, request.nothing)).empty()) return no_answer(std::move(reason));
  const std::vector<Candidate> candidates = selected(op, kVariants, request);
  for (const Candidate& candidate : candidates) {
    OwnedTensor output = empty(shape, op.output_rank, dtype, place);
    last_variant() = candidate.number;
    if (!request.nothing) reason = run_candidate(op, candidate, call, place, gpu, request, output.get());
    if (request.nothing || reason.empty()) return Answer{std::move(output), ""};
    reason = std::string(candidate.entry->name) + ": " + reason;
  }
  if (!reason.empty()) return no_answer(std::move(reason));
  Refusals refusals;
  if (candidates.empty()) select(op, kVariants, request, &refusals);
  if (!refusals.off.empty()) return no_answer("not verified on this machine: " + refusals.off);
  if (!refusals.unfit.empty()) return no_answer("no frozen kernel fits this GPU: " + refusals.unfit);
  return no_answer("no frozen kernel covers " + describe(op, request));
}

// Every operator that the table registers is listed, so that it is found by its name.
template <const Operator& op>
const bool kListed = list_operator(op);

template <const Operator& op>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  static_cast<void>(kListed<op>);
  // The arguments stand on the same stack: it is written once the call has let go of them.
  StableIValue output = 0;
  {
    Call call(op, stack);
    Answer result = answer(op, call);
    output = result.output == nullptr ? run_reference(op, call, result.reason)
                                      : torch::stable::detail::from(result.output.release());
  }
  stack[0] = output;
}

}  // namespace
}  // namespace coldforge
