// D[128 GROUP, 64] = A B^T; K comes in steps of 128 bytes through two stages. -DFORM: what follows tcgen05.mma and its
// group; -DIDESC: the instruction descriptor. With -DGROUP=2 each CTA of a pair has half of A's and of B's rows.
#include "common.cuh"

#define A_BYTES 16384
#define B_BYTES (8192 / GROUP)
#define ALL_BYTES (GROUP * (A_BYTES + B_BYTES))

DEVICE void fetch(u32 to, const Map &map, u32 bar, int x, int y) {
#if GROUP == 2  // the even CTA's barrier
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4}], [%2];" ::"r"(to), "l"(&map), "r"(bar & 0xfeffffff), "r"(x), "r"(y) : "memory");
#else
    load(to, map, bar, x, y);
#endif
}

extern "C" __global__ void __launch_bounds__(128) tcgen05(
    const __grid_constant__ Map a, const __grid_constant__ Map b, u32 *out, int steps) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 bars[5];
    __shared__ u32 place;
    u32 rank = GROUP == 2 ? cluster_rank() : 0;
    u32 sa = address(shared), sb = sa + 2 * A_BYTES, full = address(bars), empty = full + 16, done = full + 32;
    if (threadIdx.x < 32) allocate(address(&place), 64);
    if (threadIdx.x == 32) {
        for (int i = 0; i < 5; ++i) init(full + 8 * i, 1);
        init_fence();
    }
    before_sync();
    if (GROUP == 2) cluster_sync();
    __syncthreads();
    after_sync();
    u32 d = place;
    if (threadIdx.x == 0) {
        for (int s = 0; s < steps + 2; ++s) {
            if (s < steps) {
                int slot = s & 1;
                if (s >= 2) wait(empty + 8 * slot, (s >> 1) - 1 & 1);
                if (rank == 0) expect(full + 8 * slot, ALL_BYTES);
                fetch(sa + slot * A_BYTES, a, full + 8 * slot, s * STEP, rank * 128);
                fetch(sb + slot * B_BYTES, b, full + 8 * slot, s * STEP, rank * 32);
            }
            if (rank == 0 && s >= 1 && s <= steps) {
                int slot = s - 1 & 1;
                wait(full + 8 * slot, s - 1 >> 1 & 1);
                after_sync();
                for (int k = 0; k < 4; ++k) {
                    u64 left = matrix(sa + slot * A_BYTES + 32 * k, TCGEN05_128B);
                    u64 right = matrix(sb + slot * B_BYTES + 32 * k, TCGEN05_128B);
                    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %4, 0;\n\t"
                                 "tcgen05.mma" CTA_GROUP FORM " [%0], %1, %2, %3, add;\n\t}"
                                 ::"r"(d), "l"(left), "l"(right), "r"(IDESC), "r"((u32)(s > 1 || k > 0)) : "memory");
                }
                commit(s == steps ? done : empty + 8 * slot);
            }
        }
    }
    wait(done, 0);
    after_sync();
    u32 lane = threadIdx.x & 96, row = rank * 128 + threadIdx.x;
    for (int half = 0; half < 2; ++half) {
        u32 v[32];
        read(d + (lane << 16) + 32 * half, v);
        for (int i = 0; i < 32; ++i) out[row * 64 + 32 * half + i] = v[i];
    }
    before_sync();
    if (GROUP == 2) cluster_sync();
    __syncthreads();
    after_sync();
    if (threadIdx.x < 32) release(d, 64);
}
