// nvcc -std=c++17 -arch=sm_90 -ptx corpus_blocks.cu
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/pipeline>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void
#define AT int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
#define T threadIdx.x

// scans, sorts, selections
KERNEL scan_hillis(const int* x, int* y) {
  __shared__ int s[2][256]; int in = 0; s[0][T] = x[T]; __syncthreads();
  for (int d = 1; d < 256; d *= 2, in ^= 1) { s[in ^ 1][T] = s[in][T] + (T >= d ? s[in][T - d] : 0); __syncthreads(); }
  y[T] = s[in][T];
}
KERNEL scan_blelloch(const int* x, int* y) {
  __shared__ int s[256]; s[T] = x[T];
  for (int d = 1; d < 256; d *= 2) { __syncthreads(); int at = (T + 1) * 2 * d - 1; if (at < 256) s[at] += s[at - d]; }
  if (T == 0) s[255] = 0;
  for (int d = 128; d; d /= 2) { __syncthreads(); int at = (T + 1) * 2 * d - 1; if (at < 256) { int v = s[at - d]; s[at - d] = s[at]; s[at] += v; } }
  __syncthreads(); y[T] = s[T];
}
KERNEL scan_segments(const int* x, const int* head, int* y) {
  int v = x[T], f = head[T], lane = T & 31;
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, v, d), g = __shfl_up_sync(~0u, f, d); if (lane >= d) { if (!f) v += u; f |= g; } }
  y[T] = v;
}
KERNEL sort_bitonic(int* x) {
  __shared__ int s[256]; s[T] = x[T]; __syncthreads();
  for (int k = 2; k <= 256; k *= 2) for (int j = k / 2; j; j /= 2) {
    int o = T ^ j; if (o > T) { bool up = !(T & k); int a = s[T], b = s[o]; if ((a > b) == up) { s[T] = b; s[o] = a; } } __syncthreads(); }
  x[T] = s[T];
}
KERNEL sort_odd_even(short* x, int n) {
  extern __shared__ short h[]; for (int i = T; i < n; i += blockDim.x) h[i] = x[i]; __syncthreads();
  for (int r = 0; r < n; ++r) { int i = 2 * T + (r & 1); if (i + 1 < n && h[i] > h[i + 1]) { short v = h[i]; h[i] = h[i + 1]; h[i + 1] = v; } __syncthreads(); }
  for (int i = T; i < n; i += blockDim.x) x[i] = h[i];
}
KERNEL sort_radix(unsigned* x) {
  __shared__ unsigned s[128]; __shared__ int zeros[4]; unsigned v = x[T]; int lane = T & 31, warp = T >> 5;
  for (int bit = 0; bit < 32; ++bit) {
    unsigned one = v >> bit & 1, vote = __ballot_sync(~0u, !one); if (lane == 0) zeros[warp] = __popc(vote); __syncthreads();
    int before = 0, all = 0; for (int w = 0; w < 4; ++w) { if (w < warp) before += zeros[w]; all += zeros[w]; }
    int rank = before + __popc(vote & ((1u << lane) - 1)); int to = one ? all + T - rank : rank;
    s[to] = v; __syncthreads(); v = s[T]; __syncthreads(); }
  x[T] = v;
}
KERNEL sort_ranks(const double* x, double* y, int n) { AT int r = 0; for (int j = 0; j < n; ++j) r += x[j] < x[i] || (x[j] == x[i] && j < i); y[r] = x[i]; }
KERNEL merge_path(const int* a, const int* b, int* y, int na, int nb) {
  int at = blockIdx.x * blockDim.x + T; if (at >= na + nb) return; int lo = max(0, at - nb), hi = min(at, na);
  while (lo < hi) { int m = (lo + hi) / 2; if (a[m] <= b[at - 1 - m]) lo = m + 1; else hi = m; }
  int j = at - lo; y[at] = (j >= nb || (lo < na && a[lo] <= b[j])) ? a[lo] : b[j];
}
KERNEL compact_ballot(const int* x, int* y, int* count, int n) {
  int i = blockIdx.x * blockDim.x + T; bool keep = i < n && x[i] % 3 == 0; unsigned vote = __ballot_sync(~0u, keep); int lane = T & 31, base;
  if (lane == 0) base = atomicAdd(count, __popc(vote)); base = __shfl_sync(~0u, base, 0);
  if (keep) y[base + __popc(vote & ((1u << lane) - 1))] = x[i];
}
KERNEL compact_coalesced(const int* x, int* y, int* count, int n) {
  AT if (x[i] & 1) { auto g = cg::coalesced_threads(); int base; if (g.thread_rank() == 0) base = atomicAdd(count, g.size()); y[g.shfl(base, 0) + g.thread_rank()] = x[i]; }
}
KERNEL top_k(const float* x, float* y, int n) {
  float best[4] = {-1e30f, -1e30f, -1e30f, -1e30f};
  for (int i = T; i < n; i += 32) { float v = x[i]; for (int k = 0; k < 4; ++k) if (v > best[k]) { float t = best[k]; best[k] = v; v = t; } }
  for (int k = 0; k < 4; ++k) { float m = best[0]; for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (__ffs(__ballot_sync(~0u, best[0] == m)) - 1 == T) { best[0] = best[1]; best[1] = best[2]; best[2] = best[3]; best[3] = -1e30f; } if (T == 0) y[k] = m; }
}
KERNEL arg_max(const float* x, int* at, int n) {
  __shared__ unsigned long long best; if (T == 0) best = 0; __syncthreads();
  for (int i = T; i < n; i += blockDim.x) { unsigned u = __float_as_uint(x[i]); u ^= (int)u < 0 ? ~0u : 1u << 31; atomicMax(&best, (unsigned long long)u << 32 | (unsigned)~i); }
  __syncthreads(); if (T == 0) *at = ~(unsigned)best;
}
KERNEL run_lengths(const char* x, int* starts, int* count, int n) {
  __shared__ int warps[8]; __shared__ int all; int lane = T & 31, warp = T >> 5; bool head = T < n && (T == 0 || x[T] != x[T - 1]);
  unsigned v = __ballot_sync(~0u, head); if (lane == 0) warps[warp] = __popc(v); __syncthreads();
  if (T == 0) { int s = 0; for (int w = 0; w < 8; ++w) { int c = warps[w]; warps[w] = s; s += c; } all = s; } __syncthreads();
  if (head) starts[warps[warp] + __popc(v & ((1u << lane) - 1))] = T; if (T == 0) *count = all;
}
// cooperative groups, votes, shuffles
KERNEL group_tiles(const int* x, int* y) { auto t = cg::tiled_partition<8>(cg::this_thread_block()); y[T] = cg::reduce(t, x[T], cg::plus<int>()) * 10 + t.any(x[T] > 90) + 2 * t.all(x[T] > 5); }
KERNEL group_scan(const int* x, int* y) { auto t = cg::tiled_partition<16>(cg::this_thread_block()); y[T] = cg::inclusive_scan(t, x[T]) + 1000 * cg::exclusive_scan(t, x[T], cg::greater<int>()); }
KERNEL group_labels(const int* x, int* y) { auto t = cg::tiled_partition<32>(cg::this_thread_block()); auto g = cg::labeled_partition(t, x[T] % 3); y[T] = cg::reduce(g, x[T], cg::less<int>()) * 100 + g.size(); }
KERNEL warp_reduce(const int* x, unsigned* y) { y[T] = __reduce_add_sync(~0u, x[T]) ^ __reduce_max_sync(~0u, x[T]) << 8 ^ __reduce_xor_sync(~0u, x[T]) << 16; }
KERNEL warp_match(const int* x, unsigned* y) { int p; unsigned a = __match_any_sync(~0u, x[T] % 5), b = __match_all_sync(~0u, x[T] / 1000, &p); y[T] = a ^ (b + p) << 1; }
KERNEL warp_shuffles(const double* x, double* y) { double v = x[T]; y[T] = __shfl_down_sync(~0u, v, 3, 8) + 2 * __shfl_up_sync(~0u, v, 1, 16) + 4 * __shfl_sync(~0u, v, T * 7, 32) + 8 * __shfl_xor_sync(~0u, v, 5, 4); }
KERNEL warp_rotate(const short4* x, short4* y) { short4 v = x[T]; int2 w = *(int2*)&v; w.x = __shfl_sync(~0u, w.x, (T + 1) & 31); w.y = __shfl_sync(~0u, w.y, (T + 31) & 31); y[T] = *(short4*)&w; }
KERNEL block_votes(const int* x, int* y) { y[T] = __syncthreads_count(x[T] > 50) * 4 + __syncthreads_or(x[T] > 98) * 2 + (__syncthreads_and(x[T] >= 0) != 0); }
KERNEL named_barriers(const int* x, int* y) {
  __shared__ int s[128]; int half = T / 64; s[T] = x[T];
  if (half) { asm volatile("barrier.sync 1, 64;"); y[T] = s[T ^ 63]; } else { asm volatile("barrier.sync 2, 64;"); y[T] = s[T ^ 1] * 2; }
}
// atomics
KERNEL atomics_all(unsigned* x, int n) { AT atomicInc(x, 12); atomicDec(x + 1, 9); atomicAnd(x + 2, ~(1u << (i & 31))); atomicXor(x + 3, i); atomicOr(x + 4, 1u << (i % 20)); atomicMin((int*)x + 5, 7 - i); atomicExch(x + 6, 5); atomicSub(x + 7, i); }
KERNEL atomic_float(float* y, const float* x, int n) { AT int* p = (int*)y; int old = *p, seen; do { seen = old; old = atomicCAS(p, seen, __float_as_int(fmaxf(x[i], __int_as_float(seen)))); } while (old != seen); atomicAdd(y + 1, x[i]); }
KERNEL atomic_pairs(const __half2* x, __half2* y, __nv_bfloat16* z, int n) { AT atomicAdd(y + i % 4, x[i]); atomicAdd(z + i % 2, __nv_bfloat16(1.0f)); }
KERNEL hash_insert(const unsigned* x, unsigned long long* table, int n) {
  AT unsigned long long word = (unsigned long long)x[i] << 32 | (i + 1); unsigned at = x[i] * 2654435761u >> 24;
  while (true) { unsigned long long old = atomicCAS(table + at, 0ull, word); if (!old || old >> 32 == x[i]) break; at = (at + 1) & 255; }
}
KERNEL union_find(const int2* edges, int* parent, int n) {
  AT int a = edges[i].x, b = edges[i].y;
  while (true) { while (a != parent[a]) a = parent[a]; while (b != parent[b]) b = parent[b]; if (a == b) break; if (a < b) { int t = a; a = b; b = t; } if (atomicCAS(parent + a, a, b) == a) break; }
}
KERNEL histogram_match(const unsigned char* x, int* y, int n) {
  __shared__ int h[16]; if (T < 16) h[T] = 0; __syncthreads(); int i = blockIdx.x * blockDim.x + T; unsigned live = __ballot_sync(~0u, i < n);
  if (i < n) { int b = x[i] >> 4; unsigned m = __match_any_sync(live, b); if (__ffs(m) - 1 == (T & 31)) atomicAdd(h + b, __popc(m)); }
  __syncthreads(); if (T < 16) atomicAdd(y + T, h[T]);
}
KERNEL atomic_ref(int* x, int n) { AT cuda::atomic_ref<int, cuda::thread_scope_device> r(*x); r.fetch_add(i, cuda::memory_order_relaxed); r.fetch_max(i); cuda::atomic_ref<int, cuda::thread_scope_block> b(x[1 + blockIdx.x]); b.fetch_or(1 << (i % 31), cuda::memory_order_acq_rel); }
KERNEL ticket_lock(int* words, int* total) {
  if (T == 0) { int mine = atomicAdd(words, 1); while (atomicAdd(words + 1, 0) != mine) __nanosleep(10); __threadfence(); total[0] = total[0] * 3 + 1; __threadfence(); atomicAdd(words + 1, 1); }
}
// linear algebra
KERNEL matmul_tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float s[16][17], t[16][16]; int x = T, y = threadIdx.y, r = blockIdx.y * 16 + y, q = blockIdx.x * 16 + x; float v = 0;
  for (int k = 0; k < n; k += 16) { s[y][x] = r < n && k + x < n ? a[r * n + k + x] : 0; t[y][x] = q < n && k + y < n ? b[(k + y) * n + q] : 0; __syncthreads();
    for (int j = 0; j < 16; ++j) v = fmaf(s[y][j], t[j][x], v); __syncthreads(); }
  if (r < n && q < n) c[r * n + q] = v;
}
KERNEL matmul_complex(const float2* a, const float2* b, float2* c, int n) {
  AT int r = i / 8, q = i % 8; float2 v = {0, 0}; for (int k = 0; k < 8; ++k) { float2 x = a[r * 8 + k], y = b[k * 8 + q]; v.x += x.x * y.x - x.y * y.y; v.y += x.x * y.y + x.y * y.x; } c[i] = v;
}
KERNEL matmul_int8(const signed char* a, const signed char* b, int* c) {
  using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, signed char, row_major> x; fragment<matrix_b, 16, 16, 16, signed char, col_major> y; fragment<accumulator, 16, 16, 16, int> z;
  fill_fragment(z, 0); for (int k = 0; k < 32; k += 16) { load_matrix_sync(x, a + k, 32); load_matrix_sync(y, b + k, 32); mma_sync(z, x, y, z); } store_matrix_sync(c, z, 16, mem_row_major);
}
KERNEL matmul_tf32(const float* a, const float* b, float* c) {
  using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> x; fragment<matrix_b, 16, 16, 8, precision::tf32, row_major> y; fragment<accumulator, 16, 16, 8, float> z;
  fill_fragment(z, 0.f); load_matrix_sync(x, a, 8); load_matrix_sync(y, b, 16);
  for (int i = 0; i < x.num_elements; ++i) x.x[i] = __float_to_tf32(x.x[i]); for (int i = 0; i < y.num_elements; ++i) y.x[i] = __float_to_tf32(y.x[i]);
  mma_sync(z, x, y, z); store_matrix_sync(c, z, 16, mem_row_major);
}
KERNEL matmul_fp64(const double* a, const double* b, double* c) {
  using namespace nvcuda::wmma; fragment<matrix_a, 8, 8, 4, double, row_major> x; fragment<matrix_b, 8, 8, 4, double, col_major> y; fragment<accumulator, 8, 8, 4, double> z;
  fill_fragment(z, 0.0); for (int k = 0; k < 8; k += 4) { load_matrix_sync(x, a + k, 8); load_matrix_sync(y, b + k, 8); mma_sync(z, x, y, z); } store_matrix_sync(c, z, 8, mem_row_major);
}
KERNEL matmul_ldmatrix(const __half* a, const __half* b, float* c) {
  __shared__ __align__(16) __half s[16 * 16], t[8 * 16]; for (int i = T; i < 256; i += 32) s[i] = a[i]; for (int i = T; i < 128; i += 32) t[i] = b[i]; __syncwarp();
  unsigned x[4], y[2]; float z[4] = {0, 0, 0, 0}; unsigned p = __cvta_generic_to_shared(s + (T % 16) * 16 + T / 16 * 8), q = __cvta_generic_to_shared(t + (T % 8) * 16 + T / 8 % 2 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(q));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  int g = T / 4, q2 = T % 4 * 2; c[g * 8 + q2] = z[0]; c[g * 8 + q2 + 1] = z[1]; c[(g + 8) * 8 + q2] = z[2]; c[(g + 8) * 8 + q2 + 1] = z[3];
}
KERNEL spmv_rows(const int* rows, const int* columns, const float* values, const float* x, float* y, int n) { AT float v = 0; for (int j = rows[i]; j < rows[i + 1]; ++j) v += values[j] * __ldg(x + columns[j]); y[i] = v; }
KERNEL spmv_warps(const int* rows, const int* columns, const float* values, const float* x, float* y, int n) {
  int r = (blockIdx.x * blockDim.x + T) / 32, lane = T & 31; if (r >= n) return; float v = 0; for (int j = rows[r] + lane; j < rows[r + 1]; j += 32) v += values[j] * x[columns[j]];
  for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d); if (lane == 0) y[r] = v;
}
KERNEL cholesky(double* x) {
  __shared__ double s[16][17]; int r = threadIdx.y, c = T; s[r][c] = x[r * 16 + c]; __syncthreads();
  for (int k = 0; k < 16; ++k) { if (r == k && c == k) s[k][k] = sqrt(s[k][k]); __syncthreads(); if (c == k && r > k) s[r][k] /= s[k][k]; __syncthreads(); if (c > k && r >= c) s[r][c] -= s[r][k] * s[c][k]; __syncthreads(); }
  x[r * 16 + c] = r >= c ? s[r][c] : 0;
}
KERNEL solve_registers(const float* a, const float* b, float* y, int n) {
  AT float m[4][5]; for (int r = 0; r < 4; ++r) { for (int c = 0; c < 4; ++c) m[r][c] = a[i * 16 + r * 4 + c]; m[r][4] = b[i * 4 + r]; }
  for (int k = 0; k < 4; ++k) { int p = k; for (int r = k + 1; r < 4; ++r) if (fabsf(m[r][k]) > fabsf(m[p][k])) p = r; for (int c = 0; c < 5; ++c) { float t = m[k][c]; m[k][c] = m[p][c]; m[p][c] = t; }
    for (int r = 0; r < 4; ++r) if (r != k) { float f = m[r][k] / m[k][k]; for (int c = k; c < 5; ++c) m[r][c] -= f * m[k][c]; } }
  for (int r = 0; r < 4; ++r) y[i * 4 + r] = m[r][4] / m[r][r];
}
KERNEL fft_radix2(float2* x) {
  __shared__ float2 s[128]; int r = __brev(T) >> 25; s[r] = x[T]; __syncthreads();
  for (int h = 1; h < 128; h *= 2) { float2 u, v; int at = T / h * 2 * h + T % h; if (T < 64) { float a, b; sincospif(-(float)(T % h) / h, &b, &a); float2 w = s[at + h]; v = {w.x * a - w.y * b, w.x * b + w.y * a}; u = s[at]; } __syncthreads(); if (T < 64) { s[at] = {u.x + v.x, u.y + v.y}; s[at + h] = {u.x - v.x, u.y - v.y}; } __syncthreads(); }
  x[T] = s[T];
}
KERNEL walsh(int* x) { int v = x[T]; for (int d = 1; d < 32; d *= 2) { int o = __shfl_xor_sync(~0u, v, d); v = T & d ? o - v : o + v; } x[T] = v; }
// stencils, images, dynamic programs
__constant__ float mask[9] = {1, 2, 1, 2, 4, 2, 1, 2, 1};
KERNEL convolve(const float* x, float* y, int w, int h) {
  int c = blockIdx.x * blockDim.x + T, r = blockIdx.y * blockDim.y + threadIdx.y; if (c >= w || r >= h) return; float v = 0;
  for (int dy = -1; dy <= 1; ++dy) for (int dx = -1; dx <= 1; ++dx) { int cc = min(max(c + dx, 0), w - 1), rr = min(max(r + dy, 0), h - 1); v += mask[(dy + 1) * 3 + dx + 1] * x[rr * w + cc]; } y[r * w + c] = v / 16;
}
KERNEL convolve_shared(const float* x, float* y, int n) { __shared__ float s[64 + 8]; int i = blockIdx.x * 64 + T; for (int j = T; j < 72; j += 64) { int at = blockIdx.x * 64 + j - 4; s[j] = at >= 0 && at < n ? x[at] : 0; } __syncthreads(); if (i >= n) return; float v = 0; for (int j = 0; j < 9; ++j) v += s[T + j] * (j - 4); y[i] = v; }
KERNEL max_pool(const uchar4* x, uchar4* y, int w, int h) { int c = T, r = blockIdx.x; if (c >= w / 2) return; uchar4 a = x[2 * r * w + 2 * c], b = x[2 * r * w + 2 * c + 1], d = x[(2 * r + 1) * w + 2 * c]; y[r * (w / 2) + c] = make_uchar4(max(max(a.x, b.x), d.x), max(a.y, b.y), min(a.z, d.z), a.w); }
KERNEL resize(const unsigned char* x, unsigned char* y, int w, int h, int ww, int hh) { int c = blockIdx.x * blockDim.x + T, r = blockIdx.y; if (c >= ww) return; float fx = (c + .5f) * w / ww - .5f, fy = (r + .5f) * h / hh - .5f; int x0 = floorf(fx), y0 = floorf(fy); float ax = fx - x0, ay = fy - y0; auto at = [&](int q, int p) { return (float)x[min(max(p, 0), h - 1) * w + min(max(q, 0), w - 1)]; }; float v = (1 - ay) * ((1 - ax) * at(x0, y0) + ax * at(x0 + 1, y0)) + ay * ((1 - ax) * at(x0, y0 + 1) + ax * at(x0 + 1, y0 + 1)); y[r * ww + c] = (unsigned char)(v + .5f); }
KERNEL life(const unsigned char* x, unsigned char* y, int w, int h) { int c = T, r = blockIdx.x, s = 0; for (int dy = h - 1; dy <= h + 1; ++dy) for (int dx = w - 1; dx <= w + 1; ++dx) s += x[(r + dy) % h * w + (c + dx) % w]; s -= x[r * w + c]; y[r * w + c] = s == 3 || (s == 2 && x[r * w + c]); }
KERNEL edit_distance(const char* a, const char* b, int* y, int n, int m) {
  __shared__ int d[3][65]; int cur = 0; for (int k = 0; k <= n + m; ++k, cur = (cur + 1) % 3) { int i = T, j = k - i; if (i <= n && j >= 0 && j <= m) { int p = (cur + 2) % 3, q = (cur + 1) % 3; d[cur][i] = !i ? j : !j ? i : min(min(d[p][i - 1], d[p][i]) + 1, d[q][i - 1] + (a[i - 1] != b[j - 1])); } __syncthreads(); }
  if (T == 0) *y = d[(cur + 2) % 3][n];
}
KERNEL floyd(int* d, int n) { for (int k = 0; k < n; ++k) { int a = T < n ? d[threadIdx.y * n + k] + d[k * n + T] : 0; __syncthreads(); if (T < n && a < d[threadIdx.y * n + T]) d[threadIdx.y * n + T] = a; __syncthreads(); } }
KERNEL knapsack(const int* w, const int* v, int* y, int n) { __shared__ int best[2][128]; best[0][T] = 0; __syncthreads(); for (int i = 0; i < n; ++i) { int p = i & 1; best[p ^ 1][T] = T >= w[i] ? max(best[p][T], best[p][T - w[i]] + v[i]) : best[p][T]; __syncthreads(); } y[T] = best[n & 1][T]; }
KERNEL mandelbrot(int* y, int w) { float cx = T * 3.f / w - 2, cy = blockIdx.x * 2.f / w - 1, x = 0, z = 0; int k = 0; while (k < 50 && x * x + z * z < 4) { float t = x * x - z * z + cx; z = 2 * x * z + cy; x = t; ++k; } y[blockIdx.x * w + T] = k; }
KERNEL n_body(const float4* p, float3* f, int n) { __shared__ float4 s[32]; float4 me = p[T]; float3 a = {0, 0, 0}; for (int b = 0; b < n; b += 32) { __syncthreads(); if (T < 32) s[T] = p[b + T]; __syncthreads(); for (int j = 0; j < 32; ++j) { float dx = s[j].x - me.x, dy = s[j].y - me.y, dz = s[j].z - me.z, r = rsqrtf(dx * dx + dy * dy + dz * dz + .01f); float w = s[j].w * r * r * r; a.x += w * dx; a.y += w * dy; a.z += w * dz; } } f[T] = a; }
// codes, random numbers
KERNEL crc32(const unsigned char* x, unsigned* y, int each, int n) { AT unsigned c = ~0u; for (int j = 0; j < each; ++j) { c ^= x[i * each + j]; for (int k = 0; k < 8; ++k) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0); } y[i] = ~c; }
KERNEL philox(uint4* y, unsigned key, int n) { AT unsigned a = i, b = 1, c = 2, d = 3, k = key, l = key ^ 77; for (int r = 0; r < 10; ++r) { unsigned h = __umulhi(0xD2511F53u, a), g = 0xD2511F53u * a, p = __umulhi(0xCD9E8D57u, c), q = 0xCD9E8D57u * c; a = p ^ b ^ k; b = q; c = h ^ d ^ l; d = g; k += 0x9E3779B9u; l += 0xBB67AE85u; } y[i] = make_uint4(a, b, c, d); }
KERNEL xorshift_pi(unsigned long long* hits, int n) { AT unsigned s = i * 747796405u + 1; int h = 0; for (int k = 0; k < 20; ++k) { s ^= s << 13; s ^= s >> 17; s ^= s << 5; unsigned t = s * 69069u; float a = (s >> 8) * 0x1p-24f, b = (t >> 8) * 0x1p-24f; h += a * a + b * b < 1; } atomicAdd(hits, (unsigned long long)h); }
KERNEL base64(const unsigned char* x, char* y, int n) { AT const char* code = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"; unsigned v = x[3 * i] << 16 | x[3 * i + 1] << 8 | x[3 * i + 2]; for (int k = 0; k < 4; ++k) y[4 * i + k] = code[v >> (18 - 6 * k) & 63]; }
// deep learning
KERNEL softmax_online(const __half* x, __half* y, int n) { const __half* r = x + blockIdx.x * n; float m = -1e30f, s = 0; for (int i = T; i < n; i += 32) { float v = __half2float(r[i]), q = fmaxf(m, v); s = s * __expf(m - q) + __expf(v - q); m = q; } for (int d = 16; d; d /= 2) { float o = __shfl_xor_sync(~0u, m, d), t = __shfl_xor_sync(~0u, s, d), q = fmaxf(m, o); s = s * __expf(m - q) + t * __expf(o - q); m = q; } for (int i = T; i < n; i += 32) y[blockIdx.x * n + i] = __float2half(__expf(__half2float(r[i]) - m) / s); }
KERNEL rotary(__nv_bfloat162* x, const float2* table, int n) { AT float2 v = __bfloat1622float2(x[i]), t = table[i % 16]; x[i] = __floats2bfloat162_rn(v.x * t.x - v.y * t.y, v.x * t.y + v.y * t.x); }
KERNEL attention(const float* q, const float* k, const float* v, float* y, int n) { __shared__ float s[32], t[32][33]; int row = blockIdx.x; s[T] = q[row * 32 + T]; float m = -1e30f, l = 0, a = 0; for (int b = 0; b < n; b += 32) { __syncthreads(); for (int j = 0; j < 32; ++j) t[j][T] = k[(b + j) * 32 + T]; __syncthreads(); float d = 0; for (int j = 0; j < 32; ++j) d += s[j] * t[T][j]; d *= 0.17677669f; float mm = d; for (int o = 16; o; o /= 2) mm = fmaxf(mm, __shfl_xor_sync(~0u, mm, o)); mm = fmaxf(m, mm); float p = __expf(d - mm), c = __expf(m - mm), sum = p; for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o); l = l * c + sum; a *= c; for (int j = 0; j < 32; ++j) a += __shfl_sync(~0u, p, j) * v[(b + j) * 32 + T]; m = mm; } y[row * 32 + T] = a / l; }
KERNEL dropout_gelu(const float4* x, float4* y, unsigned seed, int n) { AT float4 v = x[i]; float* f = (float*)&v; for (int k = 0; k < 4; ++k) { unsigned h = (4 * i + k) * 2654435761u ^ seed; h ^= h >> 15; h *= 0x85ebca6b; h ^= h >> 13; f[k] = h & 1 ? 0 : 2 * f[k] * normcdff(f[k]); } __stcs(y + i, v); }
// language
struct Shape { __device__ virtual float area() const { return 0; } };
struct Square : Shape { float a; __device__ Square(float a) : a(a) {} __device__ float area() const override { return a * a; } };
struct Disk : Shape { float r; __device__ Disk(float r) : r(r) {} __device__ float area() const override { return 3.14159274f * r * r; } };
KERNEL virtual_calls(const float* x, float* y, int n) { AT Square s(x[i]); Disk d(x[i]); Shape* p = i & 1 ? (Shape*)&s : (Shape*)&d; y[i] = p->area(); }
__device__ int counter = 5; __device__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
KERNEL device_globals(float* y, int n) { AT if (i == 0) counter += 37; y[i] = table[i & 3] * 2; }
struct Big { int a[20]; double d; char c[3]; };
KERNEL big_argument(Big b, double* y, int n) { AT y[i] = b.a[i % 20] * b.d + b.c[i % 3]; }
KERNEL local_stack(const int* x, int* y, int n) { AT int stack[32], top = 0, v = x[i], sum = 0; stack[top++] = v; while (top) { int u = stack[--top]; sum += u; if (u > 3 && top < 30) { stack[top++] = u / 2; stack[top++] = u / 3; } } y[i] = sum; }
template <typename F> __device__ void apply(F f, int n) { AT f(i); }
KERNEL lambdas(const int* x, int* y, int n) { int k = gridDim.x * 3; apply([=](int i) { y[i] = x[i] * k + warpSize; }, n); }
__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
KERNEL recursion(unsigned* y, int n) { AT y[i] = ackermann(i % 3, i % 4); }
KERNEL switches(const unsigned char* x, int* y, int n) { AT int v = 0; for (int k = 0; k < 8; ++k) switch (x[i] >> k & 3) { case 0: v += k; break; case 1: v ^= 0x55; case 2: v *= 3; break; default: v -= 7; } y[i] = v; }
KERNEL async_copies(const int4* x, int4* y, int n) { __shared__ int4 s[2][64]; auto p = cuda::make_pipeline(); for (int k = 0; k < 2; ++k) { p.producer_acquire(); cuda::memcpy_async(&s[k][T], x + k * 64 + T, cuda::aligned_size_t<16>(16), p); p.producer_commit(); } for (int k = 0; k < n; ++k) { cuda::pipeline_consumer_wait_prior<1>(p); __syncthreads(); int4 v = s[k & 1][T ^ 1]; v.x += k; y[k * 64 + T] = v; __syncthreads(); p.consumer_release(); p.producer_acquire(); if (k + 2 < n) cuda::memcpy_async(&s[k & 1][T], x + (k + 2) * 64 + T, cuda::aligned_size_t<16>(16), p); p.producer_commit(); } }
KERNEL __cluster_dims__(2, 1, 1) cluster_sum(const float* x, float* y) { __shared__ float s; auto c = cg::this_cluster(); float v = x[blockIdx.x * 32 + T]; for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d); if (T == 0) s = v; c.sync(); if (T == 0) y[blockIdx.x] = s + *c.map_shared_rank(&s, c.block_rank() ^ 1) * 2; c.sync(); }
