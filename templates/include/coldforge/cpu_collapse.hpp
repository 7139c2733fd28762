// SPDX-License-Identifier: Apache-2.0
// A transposed convolution and the mean over its output, collapsed: each plane of the input is read once and
// summed, then each sample's sums meet the weights. Partial sums go to fixed places of the workspace and are
// combined in a fixed order, so the result does not depend on which thread did what.
//
// P holds the problem's constants, C the config's; Reduction is NoReduction or one of cpu_reduce.hpp, and
// After what follows it.
#pragma once

#include "coldforge/cpu_plane_sum.hpp"
#include "coldforge/cpu_reduce.hpp"
#include "coldforge/cpu_tap_product.hpp"

namespace coldforge {
namespace {

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

template <class P, class C, class Args, class Epilogue, class Reduction, class After>
struct Collapse {
  using Plane = PlaneSum<P, C>;
  using Partial = typename Select<C::ACC_FP64, double, float>::type;
  static constexpr int SUMS = Plane::SUMS;
  static constexpr bool REDUCES = !SAME<Reduction, NoReduction>;
  static constexpr int64_t UNITS = int64_t(P::C_in) * C::SPLIT;  // of a sample

  const Args& args;
  unsigned* arrived;  // units of each sample that are done; only of use in one launch
  Partial* partials;  // [N][C_in][SPLIT][SUMS]
  float* values;      // [N][C_out], what a reduction reads

  explicit Collapse(const Args& args) : args(args) {
    char* at = static_cast<char*>(args.workspace);
    arrived = reinterpret_cast<unsigned*>(at);
    if (C::ONE_LAUNCH) at += ceil_div<int64_t>(args.N * int(sizeof(unsigned)), 64) * 64;
    partials = reinterpret_cast<Partial*>(at);
    values = reinterpret_cast<float*>(partials + args.N * UNITS * SUMS);
  }

  // Work units [begin, end): part `unit % SPLIT` of plane `unit / SPLIT`.
  void sum(int64_t begin, int64_t end) const {
    Plane plane(args.H, args.W, args.H_out, args.W_out);
    for (int64_t unit = begin; unit < end;) {
      const int64_t n = unit / UNITS;
      const int64_t stop = smaller(end, (n + 1) * UNITS);
      const int64_t done = stop - unit;
      for (; unit < stop; ++unit) {
        const float* const first = args.x + unit / C::SPLIT * args.H * args.W;
        plane.sum_part(first, int(unit % C::SPLIT), partials + unit * SUMS);
      }
      // Who arrives last sees what all others wrote before they arrived.
      if constexpr (C::ONE_LAUNCH)
        if (__atomic_add_fetch(arrived + n, unsigned(done), __ATOMIC_ACQ_REL) == unsigned(UNITS)) finish(n);
    }
  }

  // Sample n, all of whose planes are summed.
  void finish(int64_t n) const {
    const Partial* const sums = partials + n * UNITS * SUMS;
    const auto tap_sum = [sums](int c, int t) COLDFORGE_INLINED {
      double total = 0.0;
      for (int part = 0; part < C::SPLIT; ++part)
        total += double(sums[(int64_t(c) * C::SPLIT + part) * SUMS + t]);
      return total;
    };
    const Epilogue epilogue(args);
    using Product = TapProduct<P, C, SUMS>;
    Product product;
    const double scale = 1.0 / (double(args.H_out) * double(args.W_out));
    float* const to = (REDUCES ? values : args.y) + n * P::C_out;
    double out[Product::TILE];
    for (int k = 0; k < P::C_out; k += Product::TILE) {
      const int count = smaller(Product::TILE, P::C_out - k);
      product.multiply(args.weight, tap_sum, k, count, out);
      for (int i = 0; i < count; ++i) {
        double v = out[i] * scale;
        if constexpr (P::has_conv_bias) v += double(args.conv_bias[k + i]);
        to[k + i] = epilogue(float(v), k + i);
      }
    }
    if constexpr (REDUCES) args.y[n] = After(args)(Reduction::reduce(to, P::C_out), 0);
  }
};

}  // namespace
}  // namespace coldforge
