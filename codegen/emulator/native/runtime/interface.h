// SPDX-License-Identifier: Apache-2.0
// What a kernel compiled with the shim calls, and what it exports. Both sides include this file; it needs no
// other header, so that a kernel compiles quickly.
#pragma once

extern "C" {

// Where a barrier or a warp operation stands. The id tells two apart that share a line; it survives the
// compiler's duplicating or merging of calls, which a return address would not.
struct EmulatorSite {
  const char* file;
  int line;
  int id;
};

// One value of each lane of a warp, as a meet collects them.
struct EmulatorSlots {
  unsigned present;  // lanes that brought a value; the bytes of the others are 0xff
  unsigned char bytes[32][32];
};

enum EmulatorOperation { EMULATOR_COUNT, EMULATOR_AND, EMULATOR_OR };
enum EmulatorFence { EMULATOR_FENCE_BLOCK, EMULATOR_FENCE_DEVICE };

// --- by the runtime, for kernels ---

void emulator_barrier(EmulatorSite site);
int emulator_barrier_reduce(EmulatorSite site, EmulatorOperation operation, int predicate);

// Waits until every live lane of `mask` is here, and gives what each brought, to be read before the lane's
// next operation. Only one that `orders` makes earlier accesses of a lane visible to the others.
const EmulatorSlots* emulator_warp_meet(EmulatorSite site, unsigned mask, const void* value, int bytes,
                                        bool orders);
unsigned emulator_lane();

// Shared memory: the call's dynamic part, and one object a key for the life of a block.
void* emulator_dynamic_shared();
void* emulator_static_shared(const void* key, const char* name, unsigned long bytes, unsigned long alignment);
unsigned emulator_shared_address(const void* pointer);

// Copies that are under way until they are waited for.
void emulator_copy_async(void* to, const void* from, int bytes, int wanted);
void emulator_copy_commit();
void emulator_copy_wait(int pending);

// What the copy engine and the tensor cores do in the background: a fence, so that they see what the thread
// knows to be written; copies to global memory; products of four warps, whose operands are read and whose
// sums change until they are waited for; barriers in shared memory, and copies from global memory that those
// tell of.
void emulator_publish();
void emulator_bulk_store(void* to, const void* from, unsigned bytes);
void emulator_bulk_commit();
void emulator_bulk_wait(int pending);
void emulator_products_begin();
void emulator_products_commit();
void emulator_products_wait(int pending);
void emulator_product_operand(const void* from, unsigned bytes);
float* emulator_product_sums(float* sums, int count);
void emulator_mbarrier_init(void* barrier, unsigned count);
void emulator_mbarrier_fence();
void emulator_mbarrier_arrive(void* barrier, unsigned announced_bytes);
void emulator_mbarrier_wait(void* barrier, unsigned parity);
void emulator_bulk_load(void* to, const void* from, unsigned bytes, void* barrier);

// A barrier of some threads; who does not wait only arrives.
void emulator_named_barrier(int id, int threads, int waits);

// An atomic update reads by `begin`, computes, writes by `end`; no other thread runs between the two. An
// exchange `reads` nothing: its result may be what nobody has written.
void emulator_atomic_begin(void* address, void* value, int bytes, int reads);
void emulator_atomic_end(void* address, const void* value, int bytes);
void emulator_fence(EmulatorFence scope);
void emulator_yield();
unsigned long long emulator_clock();

// --- by a compiled kernel, for the runtime ---

// The built-in variables; each is three words.
struct EmulatorVariables {
  unsigned* thread_index;
  unsigned* block_index;
  unsigned* block_size;
  unsigned* grid_size;
};

struct EmulatorEntry {
  void (*call)(const void* arguments);
  unsigned long argument_bytes;
};
}
