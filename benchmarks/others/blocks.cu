// CUB's collectives, each used twice with one temporary storage, as a kernel of 128 threads.
// AGAIN is the barrier that CUB's manual asks for between the uses; without it there is a race.
#include <cub/cub.cuh>
#include <cub/block/block_shuffle.cuh>

#define T threadIdx.x
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(128) name(const int *x, int *y)
#define STORAGE(C) __shared__ typename C::TempStorage held
#ifdef RACY
#define AGAIN
#define AGAIN_WARP
#else
#define AGAIN __syncthreads()
#define AGAIN_WARP __syncwarp()
#endif

// y[0], y[1]: sum, and sum of squares
#define REDUCES(name, how)                                  \
  KERNEL(name) {                                            \
    using C = cub::BlockReduce<int, 128, cub::how>;         \
    STORAGE(C);                                             \
    int a = C(held).Sum(x[T]);                              \
    AGAIN;                                                  \
    int b = C(held).Sum(x[T] * x[T]);                       \
    if (T == 0) { y[0] = a; y[1] = b; }                     \
  }
REDUCES(reduce_warps, BLOCK_REDUCE_WARP_REDUCTIONS)
REDUCES(reduce_raking, BLOCK_REDUCE_RAKING)
REDUCES(reduce_commutative, BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY)

// y: inclusive sums, then exclusive ones of their squares' last bits
#define SCANS(name, how)                                    \
  KERNEL(name) {                                            \
    using C = cub::BlockScan<int, 128, cub::how>;           \
    STORAGE(C);                                             \
    int a, b;                                               \
    C(held).InclusiveSum(x[T], a);                          \
    AGAIN;                                                  \
    C(held).ExclusiveSum(a & 7, b);                         \
    y[T] = a; y[128 + T] = b;                               \
  }
SCANS(scan_warps, BLOCK_SCAN_WARP_SCANS)
SCANS(scan_raking, BLOCK_SCAN_RAKING)
SCANS(scan_memoize, BLOCK_SCAN_RAKING_MEMOIZE)

// y: sorted, then sorted by the last three bits, the greatest first, in the order of before
KERNEL(sort_radix) {
  using C = cub::BlockRadixSort<int, 128, 4>;
  STORAGE(C);
  int a[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held).Sort(a);
  for (int i = 0; i < 4; ++i) y[4 * T + i] = a[i];
  AGAIN;
  C(held).SortDescending(a, 0, 3);
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}

KERNEL(sort_merge) {
  using C = cub::BlockMergeSort<int, 128, 4>;
  STORAGE(C);
  int a[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held).Sort(a, [](int p, int q) { return p < q; });
  for (int i = 0; i < 4; ++i) y[4 * T + i] = a[i];
  AGAIN;
  C(held).StableSort(a, [](int p, int q) { return (p & 7) > (q & 7); });
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}

// y: striped, and striped once more
KERNEL(exchange) {
  using C = cub::BlockExchange<int, 128, 4>;
  STORAGE(C);
  int a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held).BlockedToStriped(a, b);
  for (int i = 0; i < 4; ++i) y[4 * T + i] = b[i]++;
  AGAIN;
  C(held).BlockedToStriped(b, a);
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}

KERNEL(exchange_warps) {
  using C = cub::BlockExchange<int, 128, 4, true>;
  STORAGE(C);
  int a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held).BlockedToWarpStriped(a, b);
  for (int i = 0; i < 4; ++i) y[4 * T + i] = b[i]++;
  AGAIN;
  C(held).BlockedToWarpStriped(b, a);
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}

// y: each item goes to 3 n + 5, and from there to 5 n + 3, of 512
KERNEL(scatter) {
  using C = cub::BlockExchange<int, 128, 4>;
  STORAGE(C);
  int a[4], at[4];
  for (int i = 0; i < 4; ++i) { a[i] = x[4 * T + i]; at[i] = (3 * (4 * T + i) + 5) % 512; }
  C(held).ScatterToBlocked(a, a, at);
  for (int i = 0; i < 4; ++i) at[i] = (5 * (4 * T + i) + 3) % 512;
  AGAIN;
  C(held).ScatterToStriped(a, a, at);
  for (int i = 0; i < 4; ++i) y[T + 128 * i] = a[i];
}

// y: twice x, then x + 1, by loads and stores that go through shared memory
#define MOVES(name, in, out)                                \
  KERNEL(name) {                                            \
    using L = cub::BlockLoad<int, 128, 4, cub::in>;         \
    using C = cub::BlockStore<int, 128, 4, cub::out>;       \
    __shared__ union { L::TempStorage l; C::TempStorage s; } held; \
    int a[4], b[4];                                         \
    L(held.l).Load(x, a);                                   \
    for (int i = 0; i < 4; ++i) b[i] = 2 * a[i]++;          \
    AGAIN;                                                  \
    C(held.s).Store(y, b);                                  \
    AGAIN;                                                  \
    C(held.s).Store(y + 512, a);                            \
  }
MOVES(move_transpose, BLOCK_LOAD_TRANSPOSE, BLOCK_STORE_TRANSPOSE)
MOVES(move_warps, BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE)
MOVES(move_timesliced, BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED, BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED)

KERNEL(load_twice) {
  using C = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
  STORAGE(C);
  int a[4], b[4];
  C(held).Load(x, a, 500, 1);
  AGAIN;
  C(held).Load(x, b, 12, 2);
  for (int i = 0; i < 4; ++i) y[4 * T + i] = a[i] * b[i];
}

// y: where a run begins, and where the last bit's does
KERNEL(discontinuity) {
  using C = cub::BlockDiscontinuity<int, 128>;
  STORAGE(C);
  int a[1] = {x[T] / 16}, f[1];
  C(held).FlagHeads(f, a, ::cuda::std::not_equal_to<>());
  y[T] = f[0];
  AGAIN;
  a[0] &= 1;
  C(held).FlagHeads(f, a, ::cuda::std::not_equal_to<>());
  y[128 + T] = f[0];
}

KERNEL(difference) {
  using C = cub::BlockAdjacentDifference<int, 128>;
  STORAGE(C);
  int a[1] = {x[T]}, b[1];
  auto minus = [](int p, int q) { return p - q; };
  C(held).SubtractLeft(a, b, minus);
  y[T] = b[0];
  AGAIN;
  C(held).SubtractLeft(b, a, minus);
  y[128 + T] = a[0];
}

KERNEL(shuffle) {
  using C = cub::BlockShuffle<int, 128>;
  STORAGE(C);
  int a = 0, b = 0;
  C(held).Rotate(x[T], a, 40);
  AGAIN;
  C(held).Rotate(a + 1, b, 50);
  y[T] = a; y[128 + T] = b;
}

// y: counts of two parts, into one histogram
KERNEL(histogram) {
  using C = cub::BlockHistogram<int, 128, 2, 100, cub::BLOCK_HISTO_ATOMIC>;
  STORAGE(C);
  __shared__ int counts[100];
  int a[2] = {x[T], x[128 + T]};
  C(held).InitHistogram(counts);
  AGAIN;
  C(held).Composite(a, counts);
  __syncthreads();
  if (T < 100) y[T] = counts[T];
}

KERNEL(histogram_sort) {
  using C = cub::BlockHistogram<int, 128, 2, 100, cub::BLOCK_HISTO_SORT>;
  STORAGE(C);
  __shared__ int counts[100];
  int a[2] = {x[T], x[128 + T]}, b[2] = {x[256 + T], x[384 + T]};
  C(held).InitHistogram(counts);
  __syncthreads();
  C(held).Composite(a, counts);
  AGAIN;
  C(held).Composite(b, counts);
  __syncthreads();
  if (T < 100) y[T] = counts[T];
}

// the same, by one warp of 32 or by parts of it
KERNEL(warp_reduce) {
  using C = cub::WarpReduce<int, 24>;
  __shared__ typename C::TempStorage held[4];
  if (T % 32 >= 24) return;
  int a = C(held[T / 32]).Sum(x[T]);
#ifndef RACY
  __syncwarp(0xffffff);
#endif
  int b = C(held[T / 32]).Sum(x[T] * x[T]);
  if (T % 32 == 0) { y[T / 32] = a; y[4 + T / 32] = b; }
}

KERNEL(warp_scan) {
  using C = cub::WarpScan<int, 24>;
  __shared__ typename C::TempStorage held[4];
  if (T % 32 >= 24) return;
  int a, b;
  C(held[T / 32]).InclusiveSum(x[T], a);
#ifndef RACY
  __syncwarp(0xffffff);
#endif
  C(held[T / 32]).ExclusiveSum(a & 7, b);
  y[T] = a; y[128 + T] = b;
}

KERNEL(warp_exchange) {
  using C = cub::WarpExchange<int, 4, 32>;
  __shared__ typename C::TempStorage held[4];
  int a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held[T / 32]).BlockedToStriped(a, b);
  for (int i = 0; i < 4; ++i) y[4 * T + i] = b[i]++;
  AGAIN_WARP;
  C(held[T / 32]).BlockedToStriped(b, a);
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}

KERNEL(warp_move) {
  using L = cub::WarpLoad<int, 4, cub::WARP_LOAD_TRANSPOSE>;
  using C = cub::WarpStore<int, 4, cub::WARP_STORE_TRANSPOSE>;
  __shared__ union { L::TempStorage l; C::TempStorage s; } held[4];
  int a[4], b[4], at = T / 32;
  L(held[at].l).Load(x + 128 * at, a);
  for (int i = 0; i < 4; ++i) b[i] = 2 * a[i]++;
  AGAIN_WARP;
  C(held[at].s).Store(y + 128 * at, b);
  AGAIN_WARP;
  C(held[at].s).Store(y + 512 + 128 * at, a);
}

KERNEL(warp_sort) {
  using C = cub::WarpMergeSort<int, 4, 32>;
  __shared__ typename C::TempStorage held[4];
  int a[4];
  for (int i = 0; i < 4; ++i) a[i] = x[4 * T + i];
  C(held[T / 32]).Sort(a, [](int p, int q) { return p < q; });
  for (int i = 0; i < 4; ++i) y[4 * T + i] = a[i];
  AGAIN_WARP;
  C(held[T / 32]).StableSort(a, [](int p, int q) { return (p & 7) > (q & 7); });
  for (int i = 0; i < 4; ++i) y[512 + 4 * T + i] = a[i];
}
