// nvcc -std=c++17 -arch=sm_90 -ptx corpus_maps.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define KERNEL extern "C" __global__ void
#define AT int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
#define MAP(name, T, expression) KERNEL name(const T* x, T* y, int n) { AT T v = x[i]; y[i] = expression; }
#define ZIP(name, T, expression) \
  KERNEL name(const T* x, const T* z, T* y, int n) { AT T v = x[i], w = z[i]; y[i] = expression; }

MAP(f_sin, float, sinf(v))
MAP(f_cos, float, cosf(v))
MAP(f_tan, float, tanf(v))
MAP(f_asin, float, asinf(v))
MAP(f_atan, float, atanf(v))
MAP(f_sinh, float, sinhf(v))
MAP(f_tanh, float, tanhf(v))
MAP(f_atanh, float, atanhf(v))
MAP(f_expm1, float, expm1f(v))
MAP(f_log1p, float, log1pf(v))
MAP(f_log10, float, log10f(v))
MAP(f_cbrt, float, cbrtf(v))
MAP(f_rsqrt, float, rsqrtf(v))
MAP(f_erf, float, erff(v))
MAP(f_erfc, float, erfcf(v))
MAP(f_lgamma, float, lgammaf(v))
MAP(f_tgamma, float, tgammaf(v))
MAP(f_rint, float, rintf(v) + 8 * roundf(v) + 64 * truncf(v) + 512 * floorf(v))
MAP(f_fast, float, __expf(v) + __logf(1 + v * v) * __sinf(v))
ZIP(f_pow, float, powf(v, w))
ZIP(f_fmod, float, fmodf(v, w))
ZIP(f_remainder, float, remainderf(v, w))
ZIP(f_atan2, float, atan2f(v, w))
ZIP(f_hypot, float, hypotf(v, w))
ZIP(f_nextafter, float, nextafterf(v, w))
ZIP(f_divide, float, __fdiv_rz(v, w) + __fdividef(v, w) + __frcp_ru(w))
KERNEL f_frexp(const float* x, float* y, int* e, int n) { AT y[i] = frexpf(x[i], e + i); y[i] = ldexpf(y[i], 3); }
KERNEL f_sincos(const float* x, float* s, float* c, int n) { AT sincospif(x[i], s + i, c + i); }
MAP(d_exp, double, exp(v))
MAP(d_log, double, log(v))
MAP(d_cos, double, cos(v))
MAP(d_cbrt, double, cbrt(v))
MAP(d_erf, double, erf(v))
MAP(d_lgamma, double, lgamma(v))
MAP(d_sinh, double, sinh(v))
MAP(d_rsqrt, double, rsqrt(v) + 1 / v + sqrt(v))
ZIP(d_atan2, double, atan2(v, w))
ZIP(d_fmod, double, fmod(v, w))
ZIP(d_fma, double, __fma_rn(v, w, -v * w) + __dadd_ru(v, w) - __dmul_rd(v, w))

ZIP(i_bits, unsigned, __popc(v) + 100 * __clz(w) + 10000 * __ffs(v & w) + (__brev(v) >> 31))
ZIP(i_shift, unsigned, __funnelshift_l(v, w, v) ^ __funnelshift_rc(w, v, w & 63) ^ (v << (w & 31)))
ZIP(i_perm, unsigned, __byte_perm(v, w, v & 0x7777) ^ __byte_perm(w, v, 0x3210))
ZIP(i_high, unsigned, __umulhi(v, w) ^ __umul24(v, w) ^ __usad(v, w, 7) ^ __uhadd(v, w))
ZIP(i_simd, unsigned, __vadd4(v, w) ^ __vmaxu2(v, w) ^ __vabsdiffs4(v, w) ^ __vcmpgtu4(v, w) ^ __vavgu2(v, w))
ZIP(i_dot, int, __dp4a(v, w, 9) + __dp2a_lo(v, w, v))
ZIP(i_divide, int, v / (w | 1) + v % (w | 1) * 3 + v / 7 + w % 10)
ZIP(l_divide, long long, v / (w | 1) + v % (w | 1) + v / 1000003)
ZIP(u_divide, unsigned long long, v / (w | 1) + v % (w | 1) + __umul64hi(v, w) + v / 10)
ZIP(l_bits, long long, __popcll(v) + __clzll(w) * 100 + __ffsll(v & w) * 10000 + (v >> (w & 63)) + (long long)__brevll(w))
KERNEL i_saturate(const float* x, int* y, int n) { AT y[i] = __float2int_rd(x[i]) ^ (int)(unsigned char)x[i] ^ __float2uint_rz(fabsf(x[i])); }
KERNEL c_types(const double* x, short* s, unsigned char* b, long long* l, float* f, int n) {
  AT s[i] = (short)(int)x[i]; b[i] = (unsigned char)(unsigned)fabs(x[i]); l[i] = __double2ll_ru(x[i]); f[i] = __double2float_rd(x[i]);
}
KERNEL h_math(const __half* x, __half* y, int n) { AT y[i] = __hadd(hexp(x[i]), __hmul(hsqrt(__habs(x[i])), hsin(x[i]))); }
KERNEL h_compare(const __half* x, const __half* z, int* y, int n) {
  AT y[i] = __hlt(x[i], z[i]) + 2 * __heq(x[i], z[i]) + 4 * __hisnan(x[i]) + 8 * __hgeu(x[i], z[i]);
}
KERNEL h_pairs(const __half2* x, const __half2* z, __half2* y, int n) {
  AT y[i] = __hfma2_relu(x[i], z[i], __hmax2(x[i], z[i])); y[i] = __hadd2_sat(y[i], __low2half2(z[i]));
}
KERNEL b_math(const __nv_bfloat16* x, const __nv_bfloat16* z, __nv_bfloat16* y, float* f, int n) {
  AT y[i] = __hfma(x[i], z[i], __hmin(x[i], z[i])); f[i] = __bfloat162float(hlog(__habs(x[i])));
}
KERNEL q_fp8(const float* x, unsigned char* a, unsigned char* b, float* y, int n) {
  AT __nv_fp8_e4m3 p(x[i]); __nv_fp8_e5m2 q(x[i]); a[i] = p.__x; b[i] = q.__x; y[i] = float(p) - float(q);
}
KERNEL q_pairs(const float2* x, unsigned short* a, float2* y, int n) {
  AT a[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E4M3);
  __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(a[i], __NV_E4M3); y[i] = __half22float2(__half2(h));
}
