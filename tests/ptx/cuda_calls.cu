// nvcc -std=c++17 -arch=sm_90 -ptx cuda_calls.cu
#include <cstdio>
#include <cuda/atomic>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" {
__global__ void dsin(double* x, double* y, int n){int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) y[i]=sin(x[i])+cos(x[i])*1e-3;}
__global__ void dpow(double* x, double* y, int n){int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) y[i]=pow(x[i],2.5)+exp(x[i]*0.1)+log(x[i]+2)+sqrt(x[i])/3.0+erf(x[i])+tgamma(x[i]*0.1+1);}
__device__ __noinline__ int fact(int n){ return n<=1?1:n*fact(n-1);}
__device__ __noinline__ int fib(int n){ return n<2?n:fib(n-1)+fib(n-2);}
__global__ void rec(int* x, int* y, int n){int i=threadIdx.x; if(i<n) y[i]=fact(x[i]%8)+fib(x[i]%9);}
struct V{float a,b,c,d;};
__device__ __noinline__ V mk(V v,float s){ V r; r.a=v.a*s; r.b=v.b+s; r.c=v.c-s; r.d=v.d/s; return r;}
__global__ void structs(V* x, V* y, int n){int i=threadIdx.x; if(i<n) y[i]=mk(x[i],(float)(i+1));}
__device__ int f0(int a){return a+1;} __device__ int f1(int a){return a*3;} __device__ int f2(int a){return a-7;}
typedef int(*fp)(int);
__device__ fp tab[3]={f0,f1,f2};
__global__ void indirect(int* x,int* y,int n){int i=threadIdx.x; if(i<n) y[i]=tab[x[i]%3](x[i]);}
__global__ void sw(int* x,int* y,int n){int i=threadIdx.x; if(i<n){int v=x[i]; int r; switch(v%12){case 0:r=v*3;break;case 1:r=v^77;break;case 2:r=v-9;break;case 3:r=v<<2;break;case 4:r=v/5;break;case 5:r=-v;break;case 6:r=v&31;break;case 7:r=v|1024;break;case 8:r=v+v;break;case 9:r=v%7;break;case 10:r=~v;break;default:r=12345;} y[i]=r;}}
__global__ void pf(int* x,int* y,int n){int i=threadIdx.x; if(i<n){ if(x[i]>3) printf("%d %f\n",x[i],1.0*i); y[i]=x[i]+1;}}
__global__ void heap(int* x,int* y,int n){int i=threadIdx.x; if(i<n){int*p=(int*)malloc(16); p[0]=x[i];p[1]=p[0]*2; y[i]=p[1]; free(p);}}
__global__ void i128(unsigned long long* x, unsigned long long* y,int n){int i=threadIdx.x; if(i<n){ unsigned __int128 a=x[i]; a=a*a+((unsigned __int128)x[i]<<40); a/=12345; y[2*i]=(unsigned long long)a; y[2*i+1]=(unsigned long long)(a>>64);}}
__global__ void lockk(int* x,int* y,int n){ __shared__ int lock; __shared__ int sum; if(threadIdx.x==0){lock=0;sum=0;} __syncthreads();
 if(threadIdx.x%32==0){ while(atomicCAS(&lock,0,1)!=0); __threadfence_block(); sum+=x[threadIdx.x]; __threadfence_block(); atomicExch(&lock,0);} __syncthreads(); if(threadIdx.x==0)*y=sum;}
__global__ void flagk(int* x,int* y,int n){ __shared__ cuda::atomic<int,cuda::thread_scope_block> f; __shared__ int data; if(threadIdx.x==0) f.store(0,cuda::memory_order_relaxed); __syncthreads();
 if(threadIdx.x==0){data=x[0]; f.store(1,cuda::memory_order_release);} if(threadIdx.x==32){ while(f.load(cuda::memory_order_acquire)==0); *y=data;}}
__global__ void volflag(int* x,int* y,int n){ __shared__ volatile int f; __shared__ int data; if(threadIdx.x==0) f=0; __syncthreads();
 if(threadIdx.x==0){data=x[0]; __threadfence_block(); f=1;} if(threadIdx.x==32){ while(f==0); __threadfence_block(); *y=data;}}
__global__ void lastarr(int* x,int* y,int n){ __shared__ int part[8]; __shared__ unsigned cnt; if(threadIdx.x==0)cnt=0; __syncthreads(); int w=threadIdx.x/32;
 if(threadIdx.x%32==0){ part[w]=x[threadIdx.x]; __threadfence_block(); unsigned t=atomicAdd(&cnt,1); if(t==blockDim.x/32-1){ __threadfence_block(); int s=0; for(int i=0;i<blockDim.x/32;i++) s+=part[i]; *y=s; } } }
__global__ void cgred(int* x,int* y,int n){ auto b=cg::this_thread_block(); auto t=cg::tiled_partition<32>(b); int v=x[threadIdx.x]; int s=cg::reduce(t,v,cg::plus<int>()); if(t.thread_rank()==0) atomicAdd(y,s); b.sync();}
__global__ void hist(int* x,int* y,int n){ __shared__ int h[16]; if(threadIdx.x<16)h[threadIdx.x]=0; __syncthreads(); for(int i=threadIdx.x;i<n;i+=blockDim.x) atomicAdd(&h[x[i]&15],1); __syncthreads(); if(threadIdx.x<16) y[threadIdx.x]=h[threadIdx.x];}
__global__ void warpred(float* x,float* y,int n){ __shared__ float s[32]; float v=x[threadIdx.x]; for(int o=16;o;o>>=1) v+=__shfl_down_sync(0xffffffff,v,o); if(threadIdx.x%32==0)s[threadIdx.x/32]=v; __syncthreads(); if(threadIdx.x<32){ v=threadIdx.x<blockDim.x/32?s[threadIdx.x]:0; for(int o=16;o;o>>=1) v+=__shfl_down_sync(0xffffffff,v,o); if(threadIdx.x==0)*y=v;}}
__global__ void gridsync(int* x,int* y,int n){ auto g=cg::this_grid(); int i=g.thread_rank(); y[i]=x[i]*2; g.sync(); int j=(i+blockDim.x)%n; int v=y[j]; g.sync(); y[i]=v; }
}
