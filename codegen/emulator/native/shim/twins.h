// SPDX-License-Identifier: Apache-2.0
// The twin of each wrapper that templates/include defines under __CUDACC__ only. A test compares the names.
#pragma once

#include "matrix.h"

namespace coldforge {

inline unsigned int shared_address(const void* pointer) { return emulator_shared_address(pointer); }

template <int BYTES>
inline void cp_async(void* to, const void* from, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator_copy_async(to, from, BYTES, valid ? BYTES : 0);
}

inline void cp_async_commit() { emulator_copy_commit(); }

template <int PENDING>
inline void cp_async_wait() {
  emulator_copy_wait(PENDING);
}

// Each lane reads its own row, so that the compiler's checks see it, and hands it out.
inline void load_matrices(unsigned (&part)[4], const void* base, unsigned offset) {
  const uint4 row = *reinterpret_cast<const uint4*>(static_cast<const char*>(base) + offset);
  const coldforge_emulator::Meet<uint4> meet(COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, row);
  const unsigned lane = emulator_lane();
  for (unsigned i = 0; i < 4; ++i) {
    const uint4 from = meet.of(8 * i + lane / 4);
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
    part[i] = words[lane % 4];
  }
}

inline void multiply_halves(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                            unsigned b1) {
  const coldforge_emulator::MatrixPieces pieces = {{a0, a1, a2, a3}, {b0, b1}};
  coldforge_emulator::multiply_pieces({COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, pieces}, 2,
                                      sum);
}

inline void multiply_halves(float (&sum)[4], unsigned a0, unsigned a1, unsigned b0) {
  const coldforge_emulator::MatrixPieces pieces = {{a0, a1, 0, 0}, {b0, 0}};
  coldforge_emulator::multiply_pieces({COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, pieces}, 1,
                                      sum);
}

inline void multiply_bfloats(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                             unsigned b1) {
  const coldforge_emulator::MatrixPieces pieces = {{a0, a1, a2, a3}, {b0, b1}};
  coldforge_emulator::multiply_pieces<coldforge_emulator::bfloat_value>(
      {COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, pieces}, 2, sum);
}

inline void multiply_bfloats(float (&sum)[4], unsigned a0, unsigned a1, unsigned b0) {
  const coldforge_emulator::MatrixPieces pieces = {{a0, a1, 0, 0}, {b0, 0}};
  coldforge_emulator::multiply_pieces<coldforge_emulator::bfloat_value>(
      {COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, pieces}, 1, sum);
}

inline unsigned held(unsigned word) { return __shfl_xor_sync(coldforge_emulator::ALL_LANES, word, 1); }
inline unsigned apart(unsigned word) {
  return __shfl_sync(coldforge_emulator::ALL_LANES, word, static_cast<int>(emulator_lane()));
}
inline unsigned uniform(unsigned word) { return __shfl_sync(coldforge_emulator::ALL_LANES, word, 0); }

inline unsigned pack_halves(float low, float high) {
  return static_cast<unsigned>(coldforge_emulator::half_bits(low)) |
         static_cast<unsigned>(coldforge_emulator::half_bits(high)) << 16;
}

inline float low_half(unsigned pair) {
  return coldforge_emulator::half_value(static_cast<unsigned short>(pair));
}

inline float high_half(unsigned pair) {
  return coldforge_emulator::half_value(static_cast<unsigned short>(pair >> 16));
}

// Each lane writes the row whose place it gives, so that the compiler's checks see it.
inline void store_matrices(void* base, unsigned offset, const unsigned (&part)[4]) {
  const uint4 own = {part[0], part[1], part[2], part[3]};
  const coldforge_emulator::Meet<uint4> meet(COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, own);
  const unsigned lane = emulator_lane();
  unsigned row[4];
  for (unsigned i = 0; i < 4; ++i) {
    const uint4 from = meet.of(lane % 8 * 4 + i);
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
    row[i] = words[lane / 8];
  }
  *reinterpret_cast<uint4*>(static_cast<char*>(base) + offset) = {row[0], row[1], row[2], row[3]};
}

// Whole warps come to these.
inline void named_barrier_sync(int id, int threads) {
  emulator_warp_meet(COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, &id, 0, false);
  emulator_named_barrier(id, threads, 1);
}
inline void named_barrier_arrive(int id, int threads) {
  emulator_warp_meet(COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, &id, 0, false);
  emulator_named_barrier(id, threads, 0);
}

inline void publish_shared() { emulator_publish(); }
inline void mbarrier_init(unsigned long long* barrier, unsigned count) {
  emulator_mbarrier_init(barrier, count);
}
inline void fence_barrier_init() { emulator_mbarrier_fence(); }
inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes) {
  emulator_mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_arrive(unsigned long long* barrier) { emulator_mbarrier_arrive(barrier, 0); }
inline void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
  emulator_mbarrier_wait(barrier, parity);
}
inline void bulk_load(void* to, const void* from, unsigned bytes, unsigned long long* barrier) {
  emulator_bulk_load(to, from, bytes, barrier);
}
inline void bulk_store(void* to, const void* from, unsigned bytes) { emulator_bulk_store(to, from, bytes); }
inline void bulk_commit() { emulator_bulk_commit(); }
template <int PENDING = 0>
inline void bulk_wait_read() {
  emulator_bulk_wait(PENDING);
}

template <int COUNT>
inline void give_registers() {}
template <int COUNT>
inline void take_registers() {}
inline void warpgroup_begin() { emulator_products_begin(); }
inline void warpgroup_commit() { emulator_products_commit(); }
template <int PENDING>
inline void warpgroup_wait() {
  emulator_products_wait(PENDING);
}

template <int COUNT>
inline void keep_behind_wait(float (&)[COUNT]) {}

struct MatrixDescriptor {
  const char* base;
  unsigned apart;
};
struct MatrixPlace {
  const char* base;

  explicit MatrixPlace(const void* base) : base(static_cast<const char*>(base)) {}
  MatrixDescriptor at(unsigned offset, unsigned apart) const { return {base + offset, apart}; }
};

template <bool ADD, int SUMS>
inline void multiply_warpgroup(float (&sum)[SUMS], const unsigned (&a)[4], const MatrixDescriptor& b) {
  coldforge_emulator::note_operand(b.base, b.apart, 2 * SUMS);
  const coldforge_emulator::MatrixPieces pieces = {{a[0], a[1], a[2], a[3]}, {0, 0}};
  coldforge_emulator::multiply_in_place({COLDFORGE_EMULATOR_SITE, coldforge_emulator::ALL_LANES, pieces},
                                        b.base, b.apart, 2 * SUMS, ADD, emulator_product_sums(sum, SUMS));
}

template <bool STREAMING>
inline void move_result(void* to, const void* from, int a, int b) {
  if (a >= b) *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}

}  // namespace coldforge
