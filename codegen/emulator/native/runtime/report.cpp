// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace emulator {
namespace {

constexpr int MOST_PER_LAUNCH = 20;
constexpr int STOPPED_STATUS = 3;

struct Key {
  const char* kind;
  const char* array;
  uintptr_t pc, other_pc;
  int id, other_id;
};

uintptr_t base_of_code = 0;
const char* kernel_name = "";
Key reported[MOST_PER_LAUNCH];
int reported_count = 0;

bool is_new(const Finding& f) {
  const Key key = {f.kind, f.array, f.actor.pc, f.other.pc, f.actor.site.id, f.other.site.id};
  for (int i = 0; i < reported_count; ++i) {
    const Key& old = reported[i];
    const bool same_pair =
        old.pc == key.pc && old.other_pc == key.other_pc && old.id == key.id && old.other_id == key.other_id;
    if (same_pair && old.array == key.array && std::strcmp(old.kind, key.kind) == 0) return false;
  }
  if (reported_count == MOST_PER_LAUNCH) return false;
  reported[reported_count++] = key;
  return true;
}

int write_actor(char* to, size_t room, const char* name, const Actor& actor) {
  const bool inside = actor.pc != 0 && actor.site.file == nullptr;
  return std::snprintf(
      to, room, ", \"%s\": {\"block\": %lld, \"thread\": %d, \"pc\": %lld, \"file\": \"%s\", \"line\": %d}",
      name, static_cast<long long>(actor.block), actor.thread,
      inside ? static_cast<long long>(actor.pc - base_of_code) : -1LL, actor.site.file ? actor.site.file : "",
      actor.site.line);
}

}  // namespace

void set_code(uintptr_t base) { base_of_code = base; }
void set_kernel(const char* name) { kernel_name = name; }
uintptr_t code_base() { return base_of_code; }
void forget_reported() { reported_count = 0; }

void reply(const void* bytes, size_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = write(STDOUT_FILENO, from, count);
    if (written <= 0) _exit(STOPPED_STATUS);
    from += written;
    count -= static_cast<size_t>(written);
  }
}

void report(const Finding& f) {
  if (!is_new(f)) return;
  char text[2048];
  int used =
      std::snprintf(text, sizeof text,
                    "finding {\"kind\": \"%s\", \"detail\": \"%s\", \"kernel\": \"%s\", \"array\": \"%s\", "
                    "\"offset\": %lld, \"array_bytes\": %llu, \"bytes\": %d, \"write\": %s",
                    f.kind, f.detail, kernel_name, f.array ? f.array : "", static_cast<long long>(f.offset),
                    static_cast<unsigned long long>(f.array_bytes), f.bytes, f.write ? "true" : "false");
  used += write_actor(text + used, sizeof text - static_cast<size_t>(used), "actor", f.actor);
  if (f.other.thread != -1)
    used += write_actor(text + used, sizeof text - static_cast<size_t>(used), "other", f.other);
  used += std::snprintf(text + used, sizeof text - static_cast<size_t>(used), "}\n");
  reply(text, static_cast<size_t>(used));
}

void report_and_stop(const Finding& finding) {
  report(finding);
  reply("stopped\n", 8);
  _exit(STOPPED_STATUS);
}

void fail(const char* why) {
  std::fprintf(stderr, "emulator: %s\n", why);
  _exit(2);
}

}  // namespace emulator
