#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" {
__constant__ float weights[4] = {0.5f, -1.0f, 2.0f, 0.25f};
__device__ int calls = 7;
struct Shape { int n; float scale; long long stride; double bias; };

__global__ void softmax(const float* __restrict__ x, float* y, int n) {
  __shared__ float part[32];
  int row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, x[row * n + i]);
  for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
  if (!lane) part[warp] = most;
  __syncthreads();
  most = part[0];
  for (int i = 1; i < (blockDim.x + 31) / 32; i++) most = fmaxf(most, part[i]);
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[row * n + i] - most);
  for (int s = 16; s; s >>= 1) sum += __shfl_down_sync(~0u, sum, s);
  if (!lane) part[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < (blockDim.x + 31) / 32; i++) sum += part[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[row * n + i] = expf(x[row * n + i] - most) / sum;
}
__global__ void histogram(const unsigned char* x, int* counts, int n) {
  __shared__ int mine[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&counts[i], mine[i]);
}
__global__ void bits(const unsigned* x, unsigned* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i], w = x[(i + 1) % n];
  y[8 * i + 0] = __popc(v) + 100 * __clz(v) + 10000 * __ffs(v);
  y[8 * i + 1] = __brev(v) ^ __byte_perm(v, w, 0x3715);
  y[8 * i + 2] = __funnelshift_l(v, w, i & 63) + __funnelshift_rc(v, w, i & 63);
  y[8 * i + 3] = (v & w) ^ (~v | (w >> 3)) ^ (v << 5 & 0xff00ff00u);
  y[8 * i + 4] = __umulhi(v, w) + __mulhi((int)v, (int)w);
  y[8 * i + 5] = (unsigned)((int)v / ((int)w | 1)) + v % (w | 1);
  unsigned long long q = (unsigned long long)v << 32 | w;
  y[8 * i + 6] = (unsigned)(q / (v | 3u)) + (unsigned)(q * q >> 40) + __popcll(q);
  y[8 * i + 7] = __sad((int)v, (int)w, 5u) + min((int)v, (int)w) + max(v, w) + (v >> 7 & 0x1f);
}
__global__ void votes(const int* x, unsigned* y) {
  int t = threadIdx.x, v = x[t];
  unsigned odd = __ballot_sync(~0u, v & 1);
  unsigned same = __match_any_sync(~0u, v & 3);
  int all = __all_sync(~0u, v > -100), any = __any_sync(~0u, v > 10);
  unsigned sum = __reduce_add_sync(~0u, (unsigned)v), most = __reduce_max_sync(~0u, v);
  int up = __shfl_up_sync(~0u, v, 3, 16), other = __shfl_sync(~0u, v, t * 7);
  int wide = __syncthreads_count(v & 1) + 1000 * __syncthreads_or(v == 5);
  unsigned part = 0;
  if (t & 1) part = __ballot_sync(0xaaaaaaaau, v > 0); else part = __popc(__activemask());
  y[t] = odd + 3 * same + 5 * all + 7 * any + 11 * sum + 13 * most + 17 * up + 19 * other + 23 * wide + 29 * part;
}
__global__ void locals(const float* x, float* y, Shape s) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= s.n) return;
  float held[8];
  for (int k = 0; k < 8; k++) held[k] = x[(i + k) % s.n] * weights[k & 3];
  int at = i;
  for (int k = 0; k < 3; k++) { int p = at & 7; float z = held[p]; held[p] = held[(p + 3) & 7]; held[(p + 3) & 7] = z; at = at / 2 + k; }
  double total = s.bias;
  for (int k = 0; k < 8; k++) total += (double)held[k] * (k + 1);
  y[i * s.stride] = (float)total * s.scale + held[at & 7];
}
__global__ void collatz(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = x[i], steps = 0;
  while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; steps++; if (steps > 200) break; }
  if (steps > 100) { atomicMax(&calls, steps); steps = -steps; }
  y[i] = steps;
}
__global__ void halves(const __half* x, const __nv_bfloat16* b, __half* y, float* z, double* w, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half h = x[i]; __nv_bfloat16 c = b[i];
  y[i] = __hfma(h, h, __float2half(0.5f)) + __float2half_rz(__bfloat162float(c));
  __half2 p = __halves2half2(h, y[i]); p = __hadd2(p, p);
  float f = __half2float(h);
  z[i] = rsqrtf(fabsf(f) + 1) + sqrtf(fabsf(f)) * __frcp_rn(f + 10) + floorf(f * 3) + __int2float_rz(__float2int_rn(f * 7)) + __low2float(p)
       + __fdividef(f, 3.0f) + __saturatef(f) + copysignf(1.5f, f) + log2f(fabsf(f) + 1) + __expf(f) + truncf(f * 5) + (float)(unsigned char)(i * 37);
  w[i] = fma((double)f, (double)f, 1.0 / (2.0 + f * f)) + rint((double)f * 9) + fmin((double)f, 0.25);
}
__global__ void lock(int* word, float* total, const float* x) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int lane = 0; lane < 32; lane++)
    if ((threadIdx.x & 31) == lane) {
      while (atomicCAS(word, 0, 1)) ;
      volatile float* t = total; *t = *t + v;
      __threadfence(); atomicExch(word, 0);
    }
  atomicAdd(total + 1, v); atomicInc((unsigned*)word + 1, 6); atomicMin(word + 2, (int)v); atomicXor(word + 3, 1 << (threadIdx.x & 31));
}
}
