// nvcc -std=c++17 -arch=sm_80 -ptx corpus_mended.cu
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void
#define T threadIdx.x

// Recursion with a local array: the caller's is read after the call.
__device__ __noinline__ int folded(int* v, int k, int n) {
  int own[4]; for (int i = 0; i < 4; i++) own[i] = v[i] + k;
  if (k == n) return own[k & 3];
  int s = 0; for (int i = 0; i < 2; i++) { own[i] += i; s += folded(own, k + 1, n); }
  return s + own[0];
}
KERNEL recursive_arrays(const int* x, int* y) {
  int v[4]; for (int i = 0; i < 4; i++) v[i] = x[T + i];
  y[T] = folded(v, 0, 3);
}

// Two functions that call each other, each with a local array that outlives the other's calls.
__device__ __noinline__ int even(int* v, int n);
__device__ __noinline__ int odd(int* v, int n) {
  int own[3]; for (int i = 0; i < 3; i++) own[i] = v[i] * 2 + n;
  int s = n ? even(own, n - 1) : 0;
  return s + own[n % 3];
}
__device__ __noinline__ int even(int* v, int n) {
  int own[5]; for (int i = 0; i < 5; i++) own[i] = v[i % 3] + i;
  int s = n ? odd(own, n - 1) : 0;
  return s + own[n % 5];
}
KERNEL mutual_arrays(const int* x, int* y) {
  int v[3] = {x[T], x[T + 1], x[T + 2]};
  y[T] = even(v, x[T] & 7);
}

// Groups of two warps, which meet in the reserved shared memory.
KERNEL groups_of_warps(const int* x, int* y) {
  __shared__ cg::block_tile_memory<128> mem;
  auto b = cg::this_thread_block(mem); auto t = cg::tiled_partition<64>(b);
  int r = cg::reduce(t, x[T], cg::plus<int>()); t.sync();
  int s = cg::exclusive_scan(t, x[T]);
  y[T] = r; y[128 + T] = s;
}

KERNEL halves(const __half2* x, __half2* y) {
  int i = T;
  y[i] = h2exp(x[i]); y[32 + i] = h2log2(__habs2(x[i])); y[64 + i] = h2rsqrt(__habs2(x[i]));
  y[96 + i] = h2sin(x[i]); y[128 + i] = h2trunc(x[i]); y[160 + i] = h2tanh_approx(x[i]);
}

KERNEL clocks(long long* y) {
  long long a = clock64(); unsigned long long g0, g1;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g0));
  __nanosleep(100000);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g1));
  long long b = clock64();
  y[T * 2] = b - a; y[T * 2 + 1] = g1 - g0;
}
