// ldmatrix and stmatrix of four matrices, each way; row k of `out` holds the k-th word of each thread.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) matrices(u32 *out, const u32 *in) {
    __shared__ __align__(16) u32 tile[128], back[128];
    u32 t = threadIdx.x, v[8];
    for (int i = 0; i < 4; ++i) tile[t * 4 + i] = in[t * 4 + i];
    __syncwarp();
    u32 from = address(tile + 4 * t), to = address(back + 4 * t);
    asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from) : "memory");
    asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]) : "r"(from) : "memory");
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
    __syncwarp();
    for (int i = 0; i < 8; ++i) out[i * 32 + t] = v[i];
    for (int i = 0; i < 4; ++i) out[(8 + i) * 32 + t] = back[t * 4 + i];
}
