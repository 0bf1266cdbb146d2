// nvcc -std=c++17 -arch=sm_90 -ptx cuda_more.cu
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
namespace cg = cooperative_groups;

template <typename T, int tile>
__device__ __forceinline__ void turned(const T* x, T* y, int rows, int columns) {
  __shared__ T held[tile][tile + 1];
  int column = blockIdx.x * tile + threadIdx.x, row = blockIdx.y * tile + threadIdx.y;
  for (int i = 0; i < tile; i += blockDim.y)
    if (column < columns && row + i < rows) held[threadIdx.y + i][threadIdx.x] = x[(row + i) * columns + column];
  __syncthreads();
  column = blockIdx.y * tile + threadIdx.x, row = blockIdx.x * tile + threadIdx.y;
  for (int i = 0; i < tile; i += blockDim.y)
    if (column < rows && row + i < columns) y[(row + i) * rows + column] = held[threadIdx.x][threadIdx.y + i];
}
extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns) {
  turned<float, 32>(x, y, rows, columns);
}

template <typename T, int threads>
__device__ __forceinline__ T total(T mine, T* held) {
  held[threadIdx.x] = mine;
  __syncthreads();
#pragma unroll
  for (int s = threads / 2; s >= 32; s /= 2) {
    if (threadIdx.x < s) held[threadIdx.x] += held[threadIdx.x + s];
    __syncthreads();
  }
  T sum = held[threadIdx.x & 31];
  for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
  return sum;
}
extern "C" __global__ void reduce(const float* x, double* y, int n) {
  extern __shared__ double dynamic[];
  double mine = 0;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += 256LL * gridDim.x) mine += x[i];
  mine = total<double, 256>(mine, dynamic);
  if (threadIdx.x == 0) atomicAdd(y, mine);
}

// one pass: each block waits for the prefix of the one before
extern "C" __global__ void scan(const int* x, int* y, volatile int* state, int n) {
  __shared__ int warps[32];
  __shared__ int before;
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int v = i < n ? x[i] : 0;
  for (int s = 1; s < 32; s *= 2) { int u = __shfl_up_sync(~0u, v, s); if (lane >= s) v += u; }
  if (lane == 31) warps[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int w = lane < blockDim.x / 32 ? warps[lane] : 0;
    for (int s = 1; s < 32; s *= 2) { int u = __shfl_up_sync(~0u, w, s); if (lane >= s) w += u; }
    warps[lane] = w;
    if (lane == 0) {
      if (blockIdx.x) while (!state[2 * blockIdx.x - 2]) __nanosleep(20);
      __threadfence();
      before = blockIdx.x ? state[2 * blockIdx.x - 1] : 0;
    }
    __syncwarp();
    if (lane == blockDim.x / 32 - 1) { state[2 * blockIdx.x + 1] = before + w; __threadfence(); state[2 * blockIdx.x] = 1; }
  }
  __syncthreads();
  if (i < n) y[i] = before + v + (warp ? warps[warp - 1] : 0);
}

// a warp of the block makes 16 x 16 of c; a by rows, b by columns
template <typename T>
__device__ __forceinline__ void fragments(const T* a, const T* b, float* c, int n, int k) {
  using namespace nvcuda;
  int row = blockIdx.y * 32 + threadIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::fill_fragment(sums, 0.0f);
  for (int at = 0; at < k; at += 16) {
    wmma::load_matrix_sync(x, a + row * k + at, k);
    wmma::load_matrix_sync(y, b + column * k + at, k);
    wmma::mma_sync(sums, x, y, sums);
  }
  for (int i = 0; i < sums.num_elements; i++) sums.x[i] = 2 * sums.x[i] + 1;
  wmma::store_matrix_sync(c + row * n + column, sums, n, wmma::mem_row_major);
}
extern "C" __global__ void wmma_half(const __half* a, const __half* b, float* c, int n, int k) { fragments(a, b, c, n, k); }
extern "C" __global__ void wmma_bfloat(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int n, int k) { fragments(a, b, c, n, k); }
extern "C" __global__ void wmma_shared(const __half* a, const __half* b, __half* c) {
  using namespace nvcuda;
  __shared__ __half x[32 * 24], y[16 * 8];
  for (int i = threadIdx.x; i < 32 * 16; i += 32) x[i / 16 * 24 + i % 16] = a[i];
  for (int i = threadIdx.x; i < 16 * 8; i += 32) y[i] = b[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 32, 8, 16, __half, wmma::row_major> f;
  wmma::fragment<wmma::matrix_b, 32, 8, 16, __half, wmma::row_major> g;
  wmma::fragment<wmma::accumulator, 32, 8, 16, __half> h;
  wmma::fill_fragment(h, __float2half(0.5f));
  wmma::load_matrix_sync(f, x, 24);
  wmma::load_matrix_sync(g, y, 8);
  wmma::mma_sync(h, f, g, h);
  wmma::store_matrix_sync(c, h, 32, wmma::mem_col_major);
}

// c = a b of fp32 by 16 x 16 tiles that cp.async brings, two of them ahead
extern "C" __global__ void pipeline(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float x[3][16][16], y[3][16][16];
  int column = threadIdx.x, row = threadIdx.y, at_m = blockIdx.y * 16 + row, at_n = blockIdx.x * 16 + column;
  int steps = (k + 15) / 16;
  auto bring = [&](int step) {
    if (step < steps) {
      int s = step % 3;
      bool in_a = at_m < m && step * 16 + column < k, in_b = step * 16 + row < k && at_n < n;
      __pipeline_memcpy_async(&x[s][row][column], in_a ? a + at_m * k + step * 16 + column : a, 4, in_a ? 0 : 4);
      __pipeline_memcpy_async(&y[s][row][column], in_b ? b + (step * 16 + row) * n + at_n : b, 4, in_b ? 0 : 4);
    }
    __pipeline_commit();
  };
  bring(0), bring(1);
  float sum = 0;
  for (int step = 0; step < steps; step++) {
    __pipeline_wait_prior(1);
    __syncthreads();
    bring(step + 2);
    for (int i = 0; i < 16; i++) sum += x[step % 3][row][i] * y[step % 3][i][column];
  }
  if (at_m < m && at_n < n) c[at_m * n + at_n] = sum;
}

// one warp of four fills, the others take the sum: two stages behind mbarriers with tokens
extern "C" __global__ void barriers(const float* x, float* y, int steps) {
  using barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ float held[2][96];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier full[2], empty[2];
  if (threadIdx.x < 2) { init(&full[threadIdx.x], 128); init(&empty[threadIdx.x], 128); }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int step = 0; step < steps; step++) {
      int s = step & 1;
      empty[s].arrive_and_wait();
      for (int i = threadIdx.x; i < 96; i += 32) held[s][i] = x[step * 96 + i];
      (void)full[s].arrive();
    }
  } else {
    float sum = 0;
    for (int s = 0; s < 2; s++) (void)empty[s].arrive();
    for (int step = 0; step < steps; step++) {
      int s = step & 1;
      full[s].wait(full[s].arrive());
      sum += held[s][threadIdx.x - 32];
      if (step + 2 < steps) (void)empty[s].arrive();
    }
    y[threadIdx.x - 32] = sum;
  }
}

// copies of the block that complete on a barrier, in bulk
extern "C" __global__ void bulk(const float* x, float* y, int n) {
  using barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(128) float held[512];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar;
  if (threadIdx.x == 0) { init(&bar, blockDim.x); cuda::device::experimental::fence_proxy_async_shared_cta(); }
  __syncthreads();
  barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_global_to_shared(held, x + blockIdx.x * 512, sizeof(held), bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(held));
  } else {
    token = bar.arrive();
  }
  bar.wait(std::move(token));
  for (int i = threadIdx.x; i < 512; i += blockDim.x) held[i] = held[i] * held[i] + n;
  cuda::device::experimental::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::device::experimental::cp_async_bulk_shared_to_global(y + blockIdx.x * 512, held, sizeof(held));
    cuda::device::experimental::cp_async_bulk_commit_group();
    cuda::device::experimental::cp_async_bulk_wait_group_read<0>();
  }
}

// a histogram whose bins are spread over the four blocks of a cluster
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster(const unsigned char* x, int* counts, int n) {
  __shared__ int bins[64];
  cg::cluster_group group = cg::this_cluster();
  for (int i = threadIdx.x; i < 64; i += blockDim.x) bins[i] = 0;
  group.sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(group.map_shared_rank(bins, x[i] >> 6) + (x[i] & 63), 1);
  group.sync();
  for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(counts + group.block_rank() * 64 + i, bins[i]);
}

extern "C" __global__ void stencil(const double* x, double* y, long long nx, long long ny, long long nz, double c) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x, j = blockIdx.y * (long long)blockDim.y + threadIdx.y;
  if (i < 1 || j < 1 || i >= nx - 1 || j >= ny - 1) return;
  const long long plane = nx * ny;
  double below = x[j * nx + i], here = x[plane + j * nx + i];
  for (long long k = 1; k < nz - 1; k++) {
    long long at = k * plane + j * nx + i;
    double above = x[at + plane];
    y[at] = fma(c, x[at - 1] + x[at + 1] + x[at - nx] + x[at + nx] + below + above - 6.0 * here, here);
    below = here, here = above;
  }
}

extern "C" __global__ void pairs(const __half2* x, const __nv_bfloat162* b, __half2* y, __nv_bfloat162* z, float* w, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half2 h = x[i], one = __float2half2_rn(1.0f);
  y[i] = __hmax2(__hfma2(h, h, one), __hsub2(one, __habs2(h)));
  y[n + i] = h2rsqrt(__hadd2(__hmul2(h, h), one));
  y[2 * n + i] = __hmin2(__hneg2(h), __hgt2(h, one));
  __nv_bfloat162 g = b[i];
  z[i] = __hfma2_relu(g, g, __hneg2(__hadd2(g, g)));
  z[n + i] = __hmul2(g, __floats2bfloat162_rn(i, -0.5f));
  float2 f = __half22float2(h), e = __bfloat1622float2(g);
  w[i] = tanhf(f.x) + erff(f.y) + log1pf(fabsf(e.x)) * sinf(e.y) + powf(fabsf(f.x), e.x) + cbrtf(f.y) + fmodf(e.x, 0.75f);
}

// a bitonic sort of 256 keys in a block, then the positive ones, packed
extern "C" __global__ void sort(const float* x, float* y, float* packed, int* count) {
  __shared__ float held[256];
  __shared__ int offset[8];
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  held[t] = x[t];
  for (int size = 2; size <= 256; size *= 2)
    for (int s = size / 2; s; s /= 2) {
      __syncthreads();
      int u = t ^ s;
      if (u > t) {
        float a = held[t], b = held[u];
        if ((a > b) == !(t & size)) { held[t] = b; held[u] = a; }
      }
    }
  __syncthreads();
  y[t] = held[t];
  float v = x[t];
  unsigned mine = __ballot_sync(~0u, v > 0);
  int pred;
  unsigned same = __match_all_sync(~0u, mine, &pred);
  if (lane == 0) offset[warp] = same == ~0u && pred ? __popc(mine) : -1;
  __syncthreads();
  int at = 0;
  for (int i = 0; i < warp; i++) at += offset[i];
  if (v > 0) packed[at + __popc(mine & ((1u << lane) - 1))] = v;
  if (t == 255) *count = at + offset[7];
}

// a row's mean and variance by Welford's rule, four numbers a load
extern "C" __global__ void layernorm(const float4* x, float4* y, const float4* gain, int columns, float eps) {
  float mean = 0, squares = 0, count = 0;
  const float4* row = x + blockIdx.x * (columns / 4);
  for (int i = threadIdx.x; i < columns / 4; i += 32) {
    float4 v = __ldg(row + i);
    for (float f : {v.x, v.y, v.z, v.w}) { count += 1; float d = f - mean; mean += d / count; squares += d * (f - mean); }
  }
  for (int s = 16; s; s /= 2) {
    float m = __shfl_xor_sync(~0u, mean, s), q = __shfl_xor_sync(~0u, squares, s), c = __shfl_xor_sync(~0u, count, s);
    float both = count + c, d = m - mean;
    if (both > 0) { mean += d * c / both; squares += q + d * d * count * c / both; }
    count = both;
  }
  float scale = rsqrtf(squares / columns + eps);
  for (int i = threadIdx.x; i < columns / 4; i += 32) {
    float4 v = row[i], g = gain[i];
    __stcs(y + blockIdx.x * (columns / 4) + i, make_float4((v.x - mean) * scale * g.x, (v.y - mean) * scale * g.y,
                                                          (v.z - mean) * scale * g.z, (v.w - mean) * scale * g.w));
  }
}
