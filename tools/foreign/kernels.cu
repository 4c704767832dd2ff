// Kernels of ours for nvcc, to make PTX with what its front end emits and Triton's does not: calls, jump tables,
// structs as parameters, local arrays, initialised constants, inline assembly with scopes, function pointers.
//
//     cd tools/foreign
//     nvcc -ptx -arch=sm_90a -o ../../tests/data/foreign/nvcc.sm_90a.ptx kernels.cu
//     nvcc -ptx -lineinfo -arch=sm_100a -o ../../tests/data/foreign/nvcc_line.sm_100a.ptx kernels.cu
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

struct Shape {
    int rows, columns;
    float scale;
    unsigned char name[5];
};

__constant__ float weights[4] = {0.5f, -1.25f, 3.0e8f, 1e-40f};
__constant__ double precise[2] = {1.5, -2.25e-300};
__device__ int table[2][3] = {{1, 2, 3}, {4, 5}};
__device__ int *pointer = &table[1][0];
__device__ const char *message = "smalti";

extern "C" __device__ __noinline__ float polynomial(float x, int degree) {
    float y = 0.f;
    for (int i = 0; i < degree; ++i) y = y * x + weights[i & 3];
    return y;
}

extern "C" __device__ __noinline__ Shape twice(Shape s) {
    s.rows *= 2;
    s.name[4] ^= 0x55;
    return s;
}

typedef float (*Function)(float, int);
__device__ Function functions[1] = {polynomial};

extern "C" __global__ void __launch_bounds__(256, 2) calls(float *out, const float *in, Shape s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0);
    if (i < n) {
        Shape t = twice(s);
        out[i] = functions[n & 0](in[i], t.rows) * t.scale + precise[n & 1] + *pointer;
        if (i == 0) printf("%s %d %f\n", message, t.columns, out[0]);
    }
}

extern "C" __global__ void jumps(int *out, int kind) {
    int v = threadIdx.x;
    switch (kind) {
        case 0: v += 7; break;
        case 1: v *= 13; break;
        case 2: v ^= 0x1234; break;
        case 3: v = __popc(v); break;
        case 4: v = __brev(v); break;
        case 5: v = v / 7 % 5; break;
        case 6: v = __funnelshift_l(v, kind, 9); break;
        case 7: v -= 100; break;
        default: asm volatile("trap;");
    }
    int sorted[16];
    for (int k = 0; k < 16; ++k) sorted[(v + k * 5) & 15] = k;
    out[threadIdx.x] = v + sorted[kind & 15];
}

extern "C" __global__ void formats(__half2 *h, __nv_bfloat162 *b, __nv_fp8x2_storage_t *q, double *d, uint64_t *u, int n) {
    int i = threadIdx.x;
    h[i] = __hfma2(h[i], h[n], __float2half2_rn(1.5f));
    b[i] = __hmax2(b[i], b[n]);
    q[i] = __nv_cvt_float2_to_fp8x2(make_float2(n, i), __NV_SATFINITE, __NV_E4M3);
    d[i] = sqrt(d[i]) / 3.0 + __fma_rz(d[i], 2.0, 1.0);
    u[i] = __umul64hi(u[i], u[n]) + u[i] / 10 + atomicAdd((unsigned long long *)u, 3ull);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) shared_memory(float *out, int n) {
    __shared__ alignas(128) float tile[32][33];
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ uint64_t barrier;
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(1));
    tile[threadIdx.x][threadIdx.y] = out[threadIdx.x];
    reinterpret_cast<float *>(dynamic)[threadIdx.x] = n;
    __syncthreads();
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "WAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@done bra DONE;\n\tbra WAIT;\n\tDONE:\n\t}" ::"r"(address), "r"(0));
    asm volatile(
        "{\n\t.reg .pred p, q;\n\t.reg .b32 %%tmp<3>;\n\t"
        "elect.sync %%tmp0|p, 0xffffffff;\n\tsetp.ne.and.b32 q, %%tmp0, 3, !p;\n\t"
        "@q st.shared.b32 [%0+8], %%tmp0;\n\t}" ::"r"(address));
    out[threadIdx.x] = tile[threadIdx.y][threadIdx.x] + __shfl_xor_sync(~0u, out[n], 3) + __reduce_add_sync(~0u, n);
}
