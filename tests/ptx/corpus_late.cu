// nvcc -std=c++17 -arch=sm_90 -ptx corpus_late.cu
#include <cooperative_groups.h>
#include <cub/cub.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda/semaphore>
#include <cuda/std/complex>
#include <cuda/std/mdspan>
#include <cuda/std/optional>
#include <cuda/std/tuple>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
#define KERNEL extern "C" __global__ void
#define AT int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
#define T threadIdx.x

// CUB
KERNEL cub_reduce(const int* x, int* y) {
  using R = cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_RAKING>; __shared__ typename R::TempStorage s;
  int v = R(s).Sum(x[T]); if (T == 0) *y = v;
}
KERNEL cub_reduce_warps(const float* x, float* y) {
  using R = cub::BlockReduce<float, 128, cub::BLOCK_REDUCE_WARP_REDUCTIONS>; __shared__ typename R::TempStorage s;
  float v = R(s).Reduce(x[T], [](float a, float b) { return a < b ? b : a; }, 100); if (T == 0) *y = v;
}
KERNEL cub_arg_max(const float* x, int* at) {
  using P = cub::KeyValuePair<int, float>; using R = cub::BlockReduce<P, 128>; __shared__ typename R::TempStorage s;
  P v = R(s).Reduce(P(T, x[T]), cub::ArgMax()); if (T == 0) *at = v.key;
}
KERNEL cub_scan(const int* x, int* y) {
  using S = cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING_MEMOIZE>; __shared__ typename S::TempStorage s;
  int v[4], total; for (int k = 0; k < 4; ++k) v[k] = x[4 * T + k]; S(s).InclusiveSum(v, v, total);
  for (int k = 0; k < 4; ++k) y[4 * T + k] = v[k]; if (T == 0) y[512] = total;
}
KERNEL cub_scan_max(const int* x, int* y) {
  using S = cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS>; __shared__ typename S::TempStorage s;
  int v; S(s).ExclusiveScan(x[T], v, -1, [](int a, int b) { return a < b ? b : a; }); y[T] = v;
}
KERNEL cub_radix_sort(float* x) {
  using S = cub::BlockRadixSort<float, 128, 4>; __shared__ typename S::TempStorage s;
  float v[4]; for (int k = 0; k < 4; ++k) v[k] = x[4 * T + k]; S(s).Sort(v); for (int k = 0; k < 4; ++k) x[4 * T + k] = v[k];
}
KERNEL cub_radix_pairs(const unsigned short* x, int* y) {
  using S = cub::BlockRadixSort<unsigned short, 128, 2, int>; __shared__ typename S::TempStorage s;
  unsigned short k[2] = {x[2 * T], x[2 * T + 1]}; int v[2] = {int(2 * T), int(2 * T + 1)}; S(s).SortDescending(k, v); y[2 * T] = v[0]; y[2 * T + 1] = v[1];
}
KERNEL cub_merge_sort(long long* x) {
  using S = cub::BlockMergeSort<long long, 128, 3>; __shared__ typename S::TempStorage s;
  long long v[3]; for (int k = 0; k < 3; ++k) v[k] = x[3 * T + k]; S(s).Sort(v, [](long long a, long long b) { return a > b; }); for (int k = 0; k < 3; ++k) x[3 * T + k] = v[k];
}
KERNEL cub_warp_merge(int* x) {
  using S = cub::WarpMergeSort<int, 2, 16>; __shared__ typename S::TempStorage s[4];
  int v[2] = {x[2 * T], x[2 * T + 1]}; S(s[T / 16]).Sort(v, [](int a, int b) { return a < b; }); x[2 * T] = v[0]; x[2 * T + 1] = v[1];
}
KERNEL cub_histogram(const unsigned char* x, int* y) {
  using H = cub::BlockHistogram<unsigned char, 128, 4, 256, cub::BLOCK_HISTO_SORT>; __shared__ typename H::TempStorage s; __shared__ int h[256];
  unsigned char v[4]; for (int k = 0; k < 4; ++k) v[k] = x[4 * T + k]; H(s).Histogram(v, h); __syncthreads(); for (int b = T; b < 256; b += 128) y[b] = h[b];
}
KERNEL cub_exchange(const int* x, int* y) {
  using E = cub::BlockExchange<int, 128, 4>; __shared__ typename E::TempStorage s;
  int v[4]; for (int k = 0; k < 4; ++k) v[k] = x[128 * k + T]; E(s).StripedToBlocked(v, v); for (int k = 0; k < 4; ++k) y[4 * T + k] = v[k] + T;
}
KERNEL cub_transpose(const double* x, double* y) {
  using L = cub::BlockLoad<double, 64, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>; using S = cub::BlockStore<double, 64, 4, cub::BLOCK_STORE_TRANSPOSE>;
  __shared__ union { typename L::TempStorage load; typename S::TempStorage store; } s; double v[4];
  L(s.load).Load(x, v, 250, -1.0); for (int k = 0; k < 4; ++k) v[k] = v[k] * 2 + k; __syncthreads(); S(s.store).Store(y, v, 250);
}
KERNEL cub_heads(const int* x, int* y) {
  using D = cub::BlockDiscontinuity<int, 128>; __shared__ typename D::TempStorage s;
  int v[2] = {x[2 * T], x[2 * T + 1]}, f[2]; D(s).FlagHeads(f, v, [](int a, int b) { return a != b; }); y[2 * T] = f[0]; y[2 * T + 1] = f[1];
}
KERNEL cub_difference(const int* x, int* y) {
  using D = cub::BlockAdjacentDifference<int, 128>; __shared__ typename D::TempStorage s;
  int v[2] = {x[2 * T], x[2 * T + 1]}, f[2]; D(s).SubtractLeft(v, f, [](int a, int b) { return a - b; }); y[2 * T] = f[0]; y[2 * T + 1] = f[1];
}
KERNEL cub_shuffle(const int* x, int* y) {
  using S = cub::BlockShuffle<int, 128>; __shared__ typename S::TempStorage s; int v = 0; S(s).Rotate(x[T], v, 40); y[T] = v;
}
KERNEL cub_warp_segments(const int* x, const int* head, int* y) {
  using R = cub::WarpReduce<int>; __shared__ typename R::TempStorage s[4]; y[T] = -7; int v = R(s[T / 32]).HeadSegmentedSum(x[T], head[T]); if (head[T]) y[T] = v;
}
KERNEL cub_warp_scan(const int* x, int* y) {
  using S = cub::WarpScan<int, 8>; __shared__ typename S::TempStorage s[16]; int a, b; S(s[T / 8]).Scan(x[T], a, b, 3, [](int p, int q) { return p + q; }); y[T] = a * 1000 + b;
}
KERNEL cub_run_decode(const int* items, const int* lengths, int* y) {
  using D = cub::BlockRunLengthDecode<int, 64, 1, 4>; __shared__ typename D::TempStorage s; int v[1] = {items[T]}, l[1] = {lengths[T]}; unsigned total;
  D d(s, v, l, total); for (unsigned from = 0; from < total; from += 256) { int out[4]; d.RunLengthDecode(out, from); for (int k = 0; k < 4; ++k) if (from + 4 * T + k < total) y[from + 4 * T + k] = out[k]; __syncthreads(); }
}
// libcu++
KERNEL std_barrier(const int* x, int* y) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ int s[128]; if (T == 0) init(&bar, 128); __syncthreads();
  int v = x[T]; for (int d = 1; d < 128; d *= 2) { s[T] = v; auto token = bar.arrive(); bar.wait(std::move(token)); int u = s[T ^ d]; bar.arrive_and_wait(); v = v * 3 + u; } y[T] = v;
}
KERNEL std_memcpy(const int4* x, int4* y) {
  __shared__ alignas(16) int4 s[128]; __shared__ cuda::barrier<cuda::thread_scope_block> bar; auto g = cg::this_thread_block(); if (T == 0) init(&bar, 128); g.sync();
  cuda::memcpy_async(g, s, x, cuda::aligned_size_t<16>(sizeof(s)), bar); bar.arrive_and_wait(); int4 v = s[127 - T]; v.x += T; y[T] = v;
}
KERNEL std_pipeline(const float* x, float* y, int n) {
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; __shared__ float s[2][128]; auto g = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(g, &state); float v = 0;
  for (int at = 0, in = 0; at < n; ++at) {
    for (; in < n && in < at + 2; ++in) { pipe.producer_acquire(); cuda::memcpy_async(g, s[in % 2], x + 128 * in, sizeof(float) * 128, pipe); pipe.producer_commit(); }
    pipe.consumer_wait(); v = v * 0.5f + s[at % 2][T ^ 1]; pipe.consumer_release(); }
  y[T] = v;
}
KERNEL std_roles(const int* x, int* y, int n) {
  __shared__ cuda::barrier<cuda::thread_scope_block> full[2], empty[2]; __shared__ int s[2][32]; 
  if (T == 0) for (int k = 0; k < 2; ++k) { init(full + k, 64); init(empty + k, 64); } __syncthreads();
  if (T < 32) for (int at = 0; at < n; ++at) { empty[at % 2].arrive_and_wait(); s[at % 2][T] = x[32 * at + T]; (void)full[at % 2].arrive(); }
  else { for (int k = 0; k < 2; ++k) (void)empty[k].arrive(); int v = 0; for (int at = 0; at < n; ++at) { full[at % 2].arrive_and_wait(); v += (at + 1) * s[at % 2][63 - T]; (void)empty[at % 2].arrive(); } y[T - 32] = v; }
}
KERNEL std_semaphore(int* total) {
  __shared__ cuda::binary_semaphore<cuda::thread_scope_block> lock; __shared__ int sum; if (T == 0) { new (&lock) cuda::binary_semaphore<cuda::thread_scope_block>(1); sum = 0; } __syncthreads();
  if (T % 32 == 0) { lock.acquire(); sum = sum * 2 + 1; lock.release(); } __syncthreads(); if (T == 0) *total = sum;
}
KERNEL std_complex(const cuda::std::complex<double>* x, cuda::std::complex<double>* y, int n) { AT cuda::std::complex<double> v = x[i]; y[i] = (v * v + 1.0) / (v - cuda::std::complex<double>(0, 2)); }
KERNEL std_mdspan(const float* x, float* y) {
  cuda::std::mdspan<const float, cuda::std::extents<int, 16, 8>> a(x); cuda::std::mdspan<float, cuda::std::extents<int, 8, 16>, cuda::std::layout_left> b(y); b(T / 16, T % 16) = a(T % 16, T / 16) * 2;
}
KERNEL std_optional(const int* x, int* y, int n) { AT cuda::std::optional<int> v; if (x[i] % 2) v = x[i]; auto [a, b] = cuda::std::make_tuple(v.value_or(-1), x[i] / 3); y[i] = a * 100 + b; }
KERNEL std_atomic_double(double* y, const double* x, int n) { AT cuda::atomic_ref<double, cuda::thread_scope_device> r(*y); r.fetch_add(x[i]); cuda::atomic_ref<double, cuda::thread_scope_device> m(y[1]); m.fetch_max(x[i]); }
KERNEL std_flag(const int* x, int* y) {
  __shared__ cuda::atomic<int, cuda::thread_scope_block> flag; __shared__ int s[32]; if (T == 0) new (&flag) cuda::atomic<int, cuda::thread_scope_block>(0); __syncthreads();
  if (T < 32) { s[T] = x[T] * 3; __syncwarp(); if (T == 0) { flag.store(1, cuda::memory_order_release); flag.notify_all(); } } else { flag.wait(0, cuda::memory_order_acquire); y[T - 32] = s[63 - T]; }
}
KERNEL ptx_bulk(const int* x, int* y) {
  __shared__ alignas(128) int s[256]; __shared__ uint64_t bar; if (T == 0) { ptx::mbarrier_init(&bar, 1); ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster); ptx::fence_proxy_async(ptx::space_shared); } __syncthreads();
  if (T == 0) { ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, s, x, sizeof(s), &bar); ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, sizeof(s)); }
  while (!ptx::mbarrier_try_wait_parity(&bar, 0)) {} s[T] += s[T + 128]; s[T + 128] *= 2; ptx::fence_proxy_async(ptx::space_shared); __syncthreads();
  if (T == 0) { ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y, s, sizeof(s)); ptx::cp_async_bulk_commit_group(); ptx::cp_async_bulk_wait_group(ptx::n32_t<0>()); }
}
KERNEL ptx_reduce(const int* x, int* y) {
  __shared__ alignas(16) int s[128]; s[T] = x[128 * blockIdx.x + T]; ptx::fence_proxy_async(ptx::space_shared); __syncthreads();
  if (T == 0) { ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, y, s, sizeof(s)); ptx::cp_async_bulk_commit_group(); ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>()); }
}
KERNEL __cluster_dims__(4) cluster_softmax(const float* x, float* y) {
  auto c = cg::this_cluster(); __shared__ float most, total; __shared__ float w[4]; float v = x[128 * blockIdx.x + T], m = v;
  for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d)); if (T % 32 == 0) w[T / 32] = m; __syncthreads(); if (T == 0) most = fmaxf(fmaxf(w[0], w[1]), fmaxf(w[2], w[3])); c.sync();
  for (int r = 0; r < 4; ++r) m = fmaxf(m, *c.map_shared_rank(&most, r)); float e = expf(v - m), t = e;
  for (int d = 16; d; d /= 2) t += __shfl_xor_sync(~0u, t, d); if (T % 32 == 0) w[T / 32] = t; __syncthreads(); if (T == 0) total = w[0] + w[1] + w[2] + w[3]; c.sync();
  float all = 0; for (int r = 0; r < 4; ++r) all += *c.map_shared_rank(&total, r); y[128 * blockIdx.x + T] = e / all; c.sync();
}
KERNEL __cluster_dims__(2) cluster_histogram(const unsigned char* x, int* y, int n) {
  __shared__ int h[128]; auto c = cg::this_cluster(); h[T] = 0; c.sync();
  for (int i = c.thread_rank(); i < n; i += c.size()) atomicAdd(c.map_shared_rank(h, x[i] / 128) + x[i] % 128, 1); c.sync(); y[blockIdx.x * 128 + T] = h[T];
}
// number theory, codes
KERNEL sha256(const unsigned* k, const unsigned* x, unsigned* y, int n) {
  AT unsigned w[64], s[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, h[8];
#define R(v, b) __funnelshift_r(v, v, b)
  for (int t = 0; t < 16; ++t) w[t] = __byte_perm(x[16 * i + t], 0, 0x0123);
  for (int t = 16; t < 64; ++t) w[t] = w[t - 16] + (R(w[t - 15], 7) ^ R(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 7] + (R(w[t - 2], 17) ^ R(w[t - 2], 19) ^ w[t - 2] >> 10);
  for (int t = 0; t < 8; ++t) h[t] = s[t];
  for (int t = 0; t < 64; ++t) { unsigned a = h[7] + (R(h[4], 6) ^ R(h[4], 11) ^ R(h[4], 25)) + ((h[4] & h[5]) ^ (~h[4] & h[6])) + k[t] + w[t], b = (R(h[0], 2) ^ R(h[0], 13) ^ R(h[0], 22)) + ((h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]));
    for (int q = 7; q; --q) h[q] = h[q - 1]; h[4] += a; h[0] = a + b; }
  for (int t = 0; t < 8; ++t) y[8 * i + t] = s[t] + h[t];
}
KERNEL mod_power(const unsigned long long* x, unsigned long long* y, unsigned long long m, int n) { AT unsigned long long b = x[i] % m, e = x[i], r = 1; for (; e; e >>= 1) { if (e & 1) r = (unsigned __int128)r * b % m; b = (unsigned __int128)b * b % m; } y[i] = r; }
KERNEL big_multiply(const unsigned* a, const unsigned* b, unsigned* y, int n) {
  AT unsigned long long carry = 0, high = 0; for (int k = 0; k < 16; ++k) { for (int j = max(0, k - 7); j <= min(k, 7); ++j) { unsigned long long p = (unsigned long long)a[8 * i + j] * b[8 * i + k - j]; carry += p; high += carry < p; } y[16 * i + k] = carry; carry = carry >> 32 | high << 32; high >>= 32; }
}
KERNEL sieve(int* y, int n) { extern __shared__ unsigned char flag[]; for (int i = T; i < n; i += 128) flag[i] = i > 1; __syncthreads(); for (int p = 2; p * p < n; ++p) { if (flag[p]) for (int i = p * p + T * p; i < n; i += 128 * p) flag[i] = 0; __syncthreads(); } int c = 0; for (int i = T; i < n; i += 128) c += flag[i]; atomicAdd(y, c); }
KERNEL queens(int* y) { int n = 8, count = 0, col[8]; col[0] = T / 8; col[1] = T % 8; int k = 2; if (T >= 64 || col[0] == col[1] || abs(col[0] - col[1]) == 1) return; col[2] = -1;
  while (k > 1) { if (++col[k] == n) { --k; continue; } bool ok = true; for (int j = 0; j < k; ++j) ok &= col[j] != col[k] && abs(col[j] - col[k]) != k - j; if (!ok) continue; if (k == n - 1) ++count; else col[++k] = -1; } atomicAdd(y, count); }
KERNEL utf8_count(const unsigned char* x, int* y, int n) { int c = 0; for (int i = T; i < n; i += 128) c += (x[i] & 0xC0) != 0x80; c = __reduce_add_sync(~0u, c); if (T % 32 == 0) atomicAdd(y, c); }
KERNEL parse_ints(const char* x, const int* from, int* y, int n) { AT const char* p = x + from[i]; int s = *p == '-' ? (++p, -1) : 1, v = 0; while (*p >= '0' && *p <= '9') v = v * 10 + *p++ - '0'; y[i] = s * v; }
// linear algebra, pictures
KERNEL givens_qr(float* x) { __shared__ float s[8][8]; if (T < 64) s[T / 8][T % 8] = x[T]; __syncthreads();
  for (int j = 0; j < 8; ++j) for (int i = 7; i > j; --i) { float a = s[i - 1][j], b = s[i][j], r = hypotf(a, b), c = r ? a / r : 1, d = r ? b / r : 0; float p = 0, q = 0; if (T < 8) { p = s[i - 1][T]; q = s[i][T]; } __syncthreads(); if (T < 8) { s[i - 1][T] = c * p + d * q; s[i][T] = c * q - d * p; } __syncthreads(); } if (T < 64) x[T] = fabsf(s[T / 8][T % 8]); }
KERNEL thomas(const double* a, const double* b, const double* c, double* d, int n) { AT double p[16], q[16]; const int m = 16; p[0] = c[0] / b[0]; q[0] = d[i * m] / b[0]; for (int k = 1; k < m; ++k) { double w = 1 / (b[k] - a[k] * p[k - 1]); p[k] = c[k] * w; q[k] = (d[i * m + k] - a[k] * q[k - 1]) * w; } d[i * m + m - 1] = q[m - 1]; for (int k = m - 2; k >= 0; --k) d[i * m + k] = q[k] - p[k] * d[i * m + k + 1]; }
KERNEL dct8(const float* x, float* y) { __shared__ float s[64]; int u = T / 8, v = T % 8; s[T] = x[T]; __syncthreads(); float r = 0; for (int k = 0; k < 8; ++k) r += s[u * 8 + k] * cospif((2 * k + 1) * v / 16.f); __syncthreads(); s[T] = r; __syncthreads(); r = 0; for (int k = 0; k < 8; ++k) r += s[k * 8 + v] * cospif((2 * k + 1) * u / 16.f); y[T] = r * (u ? 0.5f : 0.35355339f) * (v ? 0.5f : 0.35355339f); }
KERNEL median9(const unsigned char* x, unsigned char* y, int w, int h) { int c = blockIdx.x * blockDim.x + T, r = blockIdx.y * blockDim.y + threadIdx.y; if (c >= w || r >= h) return; unsigned char v[9]; int k = 0; for (int a = -1; a < 2; ++a) for (int b = -1; b < 2; ++b) v[k++] = x[min(max(r + a, 0), h - 1) * w + min(max(c + b, 0), w - 1)];
  for (int i = 0; i < 5; ++i) for (int j = i + 1; j < 9; ++j) { unsigned char lo = min(v[i], v[j]), hi = max(v[i], v[j]); v[i] = lo; v[j] = hi; } y[r * w + c] = v[4]; }
KERNEL equalize(const unsigned char* x, unsigned char* y, int n) { __shared__ unsigned h[256]; h[T] = 0; __syncthreads(); for (int i = T; i < n; i += 256) atomicAdd(h + x[i], 1u); __syncthreads(); for (int d = 1; d < 256; d *= 2) { unsigned v = T >= d ? h[T - d] : 0; __syncthreads(); h[T] += v; __syncthreads(); } for (int i = T; i < n; i += 256) y[i] = 255 * h[x[i]] / n; }
KERNEL look_back(const int* x, int* y, volatile int* state) {
  __shared__ int s[128]; __shared__ int before; int v = x[blockIdx.x * 128 + T]; s[T] = v; __syncthreads(); for (int d = 1; d < 128; d *= 2) { int u = T >= d ? s[T - d] : 0; __syncthreads(); s[T] += u; __syncthreads(); }
  if (T == 0) { int b = blockIdx.x, sum = 0; if (b) { while (!state[2 * (b - 1)]) {} __threadfence(); sum = state[2 * (b - 1) + 1]; } state[2 * b + 1] = sum + s[127]; __threadfence(); state[2 * b] = 1; before = sum; } __syncthreads(); y[blockIdx.x * 128 + T] = s[T] + before;
}
KERNEL jacobi(float* a, float* b, int n, int steps) { auto g = cg::this_grid(); int i = g.thread_rank(); for (int s = 0; s < steps; ++s) { if (i > 0 && i < n - 1) b[i] = 0.5f * (a[i - 1] + a[i + 1]); else if (i < n) b[i] = a[i]; g.sync(); float* t = a; a = b; b = t; } }
KERNEL k_means(const float2* x, const float2* c, int* y, float* sums, int n) { __shared__ float s[12]; if (T < 12) s[T] = 0; __syncthreads(); int i = blockIdx.x * blockDim.x + T; if (i < n) { int best = 0; float d = 1e30f; for (int k = 0; k < 4; ++k) { float p = x[i].x - c[k].x, q = x[i].y - c[k].y, e = p * p + q * q; if (e < d) { d = e; best = k; } } y[i] = best; atomicAdd(s + 3 * best, x[i].x); atomicAdd(s + 3 * best + 1, x[i].y); atomicAdd(s + 3 * best + 2, 1.f); } __syncthreads(); if (T < 12) atomicAdd(sums + T, s[T]); }
KERNEL lstm_cell(const __half* gates, float* c, __half* h, int n) { AT float f = __half2float(gates[i]), g = __half2float(gates[n + i]), o = __half2float(gates[2 * n + i]), u = __half2float(gates[3 * n + i]); auto s = [](float v) { return 1 / (1 + __expf(-v)); }; float v = s(f) * c[i] + s(g) * tanhf(u); c[i] = v; h[i] = __float2half(s(o) * tanhf(v)); }
KERNEL int4_gemv(const unsigned* q, const float* scale, const float* x, float* y, int k) { int r = blockIdx.x * 4 + T / 32, lane = T % 32; float v = 0; for (int j = lane; j < k / 8; j += 32) { unsigned w = q[r * (k / 8) + j]; for (int e = 0; e < 8; ++e) v += ((int)(w >> 4 * e & 15) - 8) * scale[r] * x[8 * j + e]; } for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d); if (lane == 0) y[r] = v; }
KERNEL mma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) { // a: 16 x 16 row, b: 16 x 8 column
  int g = T / 4, t = T % 4; const unsigned *p = (const unsigned*)a, *q = (const unsigned*)b; unsigned x[4] = {p[g * 8 + t], p[(g + 8) * 8 + t], p[g * 8 + t + 4], p[(g + 8) * 8 + t + 4]}, z[2] = {q[g * 8 + t], q[g * 8 + t + 4]}; float d[4];
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(z[0]), "r"(z[1]), "f"(1.f));
  c[g * 8 + 2 * t] = d[0]; c[g * 8 + 2 * t + 1] = d[1]; c[(g + 8) * 8 + 2 * t] = d[2]; c[(g + 8) * 8 + 2 * t + 1] = d[3]; }
KERNEL double_double(const double* x, double2* y, int n) { AT double h = 0, l = 0; for (int k = 0; k < 20; ++k) { double v = x[i] * (k + 1), s = h + v, b = s - h, e = (h - (s - b)) + (v - b); double p = s * x[i], f = __fma_rn(s, x[i], -p); l = l * x[i] + e * x[i] + f; h = p; } y[i] = {h, l}; }
struct Node { int value; Node* next; };
KERNEL linked_list(const int* x, int* y, int n) { AT Node* head = nullptr; for (int k = 0; k <= i % 5; ++k) { Node* made = new Node{x[i] + k, head}; head = made; } int v = 0; while (head) { v = v * 7 + head->value; Node* old = head; head = head->next; delete old; } y[i] = v; }
