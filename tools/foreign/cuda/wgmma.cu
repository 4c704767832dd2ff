// D[64, 32] = A[64, K] B[32, K]^T by one warpgroup; K comes in steps of 128 bytes through two stages of shared memory.
// -DTYPES=f32.f16.f16 and so on, -DSHAPE=m64n32k16, -DFLAGS: what follows scale-d; -DSPARSE: two of four of A are there.
#include "common.cuh"

#ifdef INTEGER
typedef int Value;
#define REGISTER "+r"
#else
typedef float Value;
#define REGISTER "+f"
#endif

#define SUM(i) REGISTER(d[i]), REGISTER(d[i + 1]), REGISTER(d[i + 2]), REGISTER(d[i + 3])
#define LIST "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"

extern "C" __global__ void __launch_bounds__(128) wgmma(
    const __grid_constant__ Map a, const __grid_constant__ Map b, const u32 *meta, Value *out, int steps) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 bars[2];
    u32 sa = address(shared), sb = sa + 2 * A_BYTES, full = address(bars);
    if (threadIdx.x == 0) {
        init(full, 1);
        init(full + 8, 1);
        init_fence();
    }
    __syncthreads();
    Value d[16];
    for (int i = 0; i < 16; ++i) d[i] = 0;
    if (threadIdx.x == 0)
        for (int s = 0; s < 2 && s < steps; ++s) {
            expect(full + 8 * s, A_BYTES + B_BYTES);
            load(sa + s * A_BYTES, a, full + 8 * s, s * A_STEP, 0);
            load(sb + s * B_BYTES, b, full + 8 * s, s * B_STEP, 0);
#if B_BYTES > 4096
            load(sb + s * B_BYTES + 4096, b, full + 8 * s, s * B_STEP + B_STEP / 2, 0);
#endif
        }
    for (int s = 0; s < steps; ++s) {
        int slot = s & 1;
        wait(full + 8 * slot, s >> 1 & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; ++k) {
            u64 left = matrix(sa + slot * A_BYTES + 32 * k, WGMMA_128B);
#ifdef SPARSE
            u64 right = matrix(sb + slot * B_BYTES + 4096 * (k >> 1) + 64 * (k & 1), WGMMA_128B);
            u32 places = meta[(s * 4 + k) * 128 + threadIdx.x];
            asm volatile("wgmma.mma_async.sp.sync.aligned." TEXT(SHAPE) "." TEXT(TYPES) " " LIST
                         ", %16, %17, %18, 0, 1" FLAGS ";" : SUM(0), SUM(4), SUM(8), SUM(12) : "l"(left), "l"(right), "r"(places));
#else
            u64 right = matrix(sb + slot * B_BYTES + 32 * k, WGMMA_128B);
            asm volatile("wgmma.mma_async.sync.aligned." TEXT(SHAPE) "." TEXT(TYPES) " " LIST ", %16, %17, 1" FLAGS ";"
                         : SUM(0), SUM(4), SUM(8), SUM(12) : "l"(left), "l"(right));
#endif
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0 && s + 2 < steps) {
            expect(full + 8 * slot, A_BYTES + B_BYTES);
            load(sa + slot * A_BYTES, a, full + 8 * slot, (s + 2) * A_STEP, 0);
            load(sb + slot * B_BYTES, b, full + 8 * slot, (s + 2) * B_STEP, 0);
#if B_BYTES > 4096
            load(sb + slot * B_BYTES + 4096, b, full + 8 * slot, (s + 2) * B_STEP + B_STEP / 2, 0);
#endif
        }
    }
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 16; ++i) out[(row + (i >> 1 & 1) * 8) * 32 + column + (i >> 2) * 8 + (i & 1)] = d[i];
}
