// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <iostream>
#include <sstream>

namespace emulator {
namespace {

Role role_named(const std::string& name) {
  if (name == "input") return Role::INPUT;
  if (name == "output") return Role::OUTPUT;
  if (name == "workspace") return Role::WORKSPACE;
  if (name == "updated") return Role::UPDATED;
  fail("the job names a role that does not exist");
}

Array read_array(std::istringstream& line) {
  Array array;
  std::string role;
  size_t sent = 0;
  line >> role >> array.bytes >> array.zeroed >> sent >> array.name;
  if (!line) fail("the job has a broken array");
  array.role = role_named(role);
  array.content.resize(sent);
  std::cin.read(array.content.data(), static_cast<std::streamsize>(sent));
  if (!std::cin) fail("the job ends early");
  return array;
}

Geometry read_kernel(std::istringstream& line) {
  std::string name;
  Geometry kernel;
  line >> name >> kernel.grid >> kernel.block >> kernel.shared_bytes;
  if (!line) fail("the job has a broken kernel");
  kernel.name = name == "coldforge_finish" ? "coldforge_finish" : "coldforge_kernel";
  return kernel;
}

Order read_order(std::istringstream& line) {
  std::string kind;
  Order order;
  line >> kind >> order.seed;
  order.kind = kind == "reverse" ? Order::REVERSE : kind == "shuffle" ? Order::SHUFFLE : Order::FORWARD;
  return order;
}

void read_into(Job& job, const std::string& word, std::istringstream& line) {
  if (word == "library") {
    std::getline(line >> std::ws, job.library);
    return;
  }
  if (word == "call") {
    job.calls.emplace_back();
    line >> job.calls.back().time_limit_s;
    return;
  }
  if (job.calls.empty()) fail("the job has no call before its parts");
  Call& call = job.calls.back();
  if (word == "order") {
    call.order = read_order(line);
  } else if (word == "kernel") {
    call.kernels.push_back(read_kernel(line));
  } else if (word == "array") {
    call.arrays.push_back(read_array(line));
  } else if (word == "number" || word == "address") {
    call.words.push_back({word == "address", 0});
    line >> call.words.back().value;
  } else {
    fail("the job has a line of an unknown kind");
  }
}

}  // namespace

Job read_job() {
  Job job;
  std::string text, word;
  while (std::getline(std::cin, text)) {
    std::istringstream line(text);
    if (line >> word) read_into(job, word, line);
  }
  return job;
}

}  // namespace emulator
