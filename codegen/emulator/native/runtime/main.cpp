// SPDX-License-Identifier: Apache-2.0
// Loads one kernel's library and runs the calls of a job, in this process, one after another.
#include <dlfcn.h>
#include <link.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "access.h"
#include "job.h"
#include "signals.h"

namespace emulator {
namespace {

void* library = nullptr;

template <class F>
F symbol(const std::string& name) {
  void* found = dlsym(library, name.c_str());
  if (found == nullptr) fail(dlerror());
  return reinterpret_cast<F>(found);
}

// Where the library lies; a kernel may read all of that: its constants are there.
int note_library(dl_phdr_info* info, size_t, void* base) {
  if (info->dlpi_addr != *static_cast<uintptr_t*>(base)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    allow_library(reinterpret_cast<const void*>(info->dlpi_addr + header.p_vaddr), header.p_memsz);
  }
  return 1;
}

void load(const std::string& path) {
  library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(dlerror());
  const auto variables = symbol<EmulatorVariables (*)()>("emulator_variables");
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(variables), &info) == 0) fail("the kernel's library has no address");
  uintptr_t base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  set_code(base);
  dl_iterate_phdr(note_library, &base);
  set_variables(variables());
}

void place(const Array& array) {
  Region& region = memory.add(array.name, array.role, array.bytes, 256);
  std::memcpy(region.base, array.content.data(), array.content.size());
  std::memset(region.base, 0, array.zeroed);
  region.initialised = array.content.empty() ? array.zeroed : array.content.size();
}

void send_results(const Call& call) {
  for (size_t i = 0; i < call.arrays.size(); ++i) {
    const Region& region = *memory.regions[i];
    if (region.role != Role::OUTPUT && region.role != Role::UPDATED) continue;
    char text[64];
    const int used = std::snprintf(text, sizeof text, "array %zu %zu\n", i, region.bytes);
    reply(text, static_cast<size_t>(used));
    reply(region.base, region.bytes);
  }
}

void run_call(const Call& call) {
  forget_reported();
  for (const Array& array : call.arrays) place(array);
  std::vector<uint64_t> words;
  for (const Word& word : call.words) {
    if (word.is_address && word.value >= call.arrays.size()) fail("the job's arguments name no array");
    words.push_back(word.is_address ? reinterpret_cast<uint64_t>(memory.regions[word.value]->base)
                                    : word.value);
  }
  allow_arguments(words.data(), words.size() * 8);
  const auto started = std::chrono::steady_clock::now();
  limit_time(call.time_limit_s);
  for (const Geometry& kernel : call.kernels) {
    const auto entry = symbol<EmulatorEntry (*)()>(std::string("emulator_entry_") + kernel.name)();
    if (entry.argument_bytes != words.size() * 8) fail("the kernel's argument struct has another size");
    run_kernel(kernel, entry, words.data(), call.order);
  }
  limit_time(0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  send_results(call);
  memory.clear();
  char text[64];
  reply(text, static_cast<size_t>(std::snprintf(text, sizeof text, "done %.6f\n", seconds.count())));
}

}  // namespace
}  // namespace emulator

int main() {
  using namespace emulator;
  const Job job = read_job();
  catch_signals();
  load(job.library);
  for (const Call& call : job.calls) run_call(call);
  return 0;
}
