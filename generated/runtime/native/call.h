// SPDX-License-Identifier: Apache-2.0
// One call of an operator, taken off PyTorch's boxed stack.
//
// Order of the stack, as in the schema: tensors, scalars (float), attributes (int or int[k]), precision
// (str?).
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <vector>

#include "entry.h"
#include "tensor.h"

namespace coldforge {
namespace {

inline double eps_of_precision(const std::string& name) {
  if (name == "fp32") return 0x1p-24;
  if (name == "tf32" || name == "fp16") return 0x1p-11;
  return name == "bf16" ? 0x1p-8 : -1;
}

inline double eps_of_dtype(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return 0x1p-24;
    case DType::fp16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    default:
      return 0;
  }
}

// The arguments. They stay on the stack, and are freed with the call unless the reference takes them over.
class Call {
 public:
  Call(const Operator& op, StableIValue* stack) : op_(op), stack_(stack) {
    StableIValue* next = stack;
    for (int i = 0; i < op.tensor_count; ++i, ++next) tensors_[i] = read_tensor(*next, op.tensor_optional[i]);
    for (int i = 0; i < op.scalar_count; ++i, ++next)
      scalars_.push_back(torch::stable::detail::to<double>(*next));
    for (int i = 0; i < op.attribute_count; ++i, ++next) read_attribute(*next, op.attribute_length[i]);
    precision_ = read_string(*next);
  }

  ~Call() {
    if (owned_) release();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The stack's values, which the caller owns from here on.
  std::vector<StableIValue> take() {
    owned_ = false;
    return std::vector<StableIValue>(stack_, stack_ + stack_size());
  }

  int stack_size() const { return op_.tensor_count + op_.scalar_count + op_.attribute_count + 1; }
  AtenTensorHandle tensor(int i) const { return tensors_[i]; }
  AtenTensorHandle first() const { return tensors_[0]; }
  const std::vector<double>& scalars() const { return scalars_; }
  const std::optional<std::string>& precision() const { return precision_; }

  // Fills the operator's named values. Returns nothing, or why the arguments do not fit the declaration.
  std::string bind(int64_t* values) const {
    const Place place = place_of(first());
    const int32_t dtype = dtype_code_of(first());
    Shapes shapes{};
    for (int i = 0; i < op_.tensor_count; ++i) {
      shapes.rank[i] = -1;
      if (tensors_[i] == nullptr) continue;
      if (!(place_of(tensors_[i]) == place)) return "the tensors are on different devices";
      if (dtype_code_of(tensors_[i]) != dtype) return "the tensors have different dtypes";
      int64_t rank = 0;
      int64_t* sizes = nullptr;
      check(aoti_torch_get_dim(tensors_[i], &rank), "asking a tensor's rank");
      check(aoti_torch_get_sizes(tensors_[i], &sizes), "asking a tensor's sizes");
      shapes.rank[i] = static_cast<int>(rank);
      shapes.size[i] = sizes;
    }
    const auto element_bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
    if (!attributes_fit_) return "an attribute has another length";
    const char* why = op_.bind(shapes, attributes_.data(), element_bytes, values);
    return why == nullptr ? "" : filled(why, values);
  }

 private:
  static AtenTensorHandle read_tensor(StableIValue value, bool optional) {
    if (!optional) return torch::stable::detail::to<AtenTensorHandle>(value);
    auto* boxed = torch::stable::detail::to<StableIValue*>(value);
    return boxed == nullptr ? nullptr : torch::stable::detail::to<AtenTensorHandle>(*boxed);
  }

  static std::optional<std::string> read_string(StableIValue value) {
    auto* boxed = torch::stable::detail::to<StableIValue*>(value);
    if (boxed == nullptr) return std::nullopt;
    const auto handle = torch::stable::detail::to<StringHandle>(*boxed);
    size_t length = 0;
    const char* text = nullptr;
    check(torch_string_length(handle, &length), "reading a string");
    check(torch_string_c_str(handle, &text), "reading a string");
    return std::string(text, length);
  }

  // The text with each {NAME} replaced by that value.
  std::string filled(const std::string& text, const int64_t* values) const {
    std::string result = text;
    for (int i = 0; i < op_.value_count; ++i) {
      const std::string field = std::string("{") + op_.value_names[i] + "}";
      for (size_t at = 0; (at = result.find(field, at)) != std::string::npos;) {
        result.replace(at, field.size(), std::to_string(values[i]));
      }
    }
    return result;
  }

  void release() {
    StableIValue* next = stack_;
    for (int i = 0; i < op_.tensor_count; ++i, ++next) {
      if (tensors_[i] != nullptr) aoti_torch_delete_tensor_object(tensors_[i]);
      if (op_.tensor_optional[i]) delete torch::stable::detail::to<StableIValue*>(*next);
    }
    next += op_.scalar_count;
    for (int i = 0; i < op_.attribute_count; ++i, ++next) {
      if (op_.attribute_length[i] > 0) torch_delete_list(torch::stable::detail::to<StableListHandle>(*next));
    }
    if (auto* boxed = torch::stable::detail::to<StableIValue*>(*next)) {
      torch_delete_string(torch::stable::detail::to<StringHandle>(*boxed));
      delete boxed;
    }
  }

  void read_attribute(StableIValue value, int length) {
    if (length == 0) {
      attributes_.push_back(torch::stable::detail::to<int64_t>(value));
      return;
    }
    const auto list = torch::stable::detail::to<StableListHandle>(value);
    size_t size = 0;
    check(torch_list_size(list, &size), "reading a list");
    attributes_fit_ = attributes_fit_ && size == static_cast<size_t>(length);
    for (size_t i = 0; i < size; ++i) {
      StableIValue element = 0;
      check(torch_list_get_item(list, i, &element), "reading a list");
      attributes_.push_back(torch::stable::detail::to<int64_t>(element));
    }
  }

  const Operator& op_;
  StableIValue* stack_;
  bool owned_ = true;
  AtenTensorHandle tensors_[kMaxTensors] = {};
  std::vector<double> scalars_;
  std::vector<int64_t> attributes_;
  bool attributes_fit_ = true;
  std::optional<std::string> precision_;
};

}  // namespace
}  // namespace coldforge
