// D[128, 128] = (A scaled) (B scaled)^T over 128 bytes of K. -DFORM: what follows tcgen05.mma and its group;
// -DIDESC(k): the descriptor of the k-th instruction; -DTILES: 512-byte tiles of scale
// factors of each side; -DIDS: the addresses of factors repeat which is the first, as in CUTLASS.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(128) tcgen05_scaled(
    const __grid_constant__ Map a, const __grid_constant__ Map b, const u32 *scales, u32 *out) {
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ u64 bars[2];
    __shared__ u32 place;
    u32 sa = address(shared), sb = sa + 16384, ss = sb + 16384, full = address(bars), done = full + 8;
    if (threadIdx.x < 32) allocate(address(&place), 256);
    if (threadIdx.x == 32) {
        init(full, 1);
        init(done, 1);
        init_fence();
    }
    for (int i = 0; i < 2 * TILES; ++i) ((u32 *)(shared + 32768))[i * 128 + threadIdx.x] = scales[i * 128 + threadIdx.x];
    proxy_fence();
    before_sync();
    __syncthreads();
    after_sync();
    u32 d = place;
    if (threadIdx.x == 0) {
        expect(full, 32768);
        load(sa, a, full, 0, 0);
        load(sb, b, full, 0, 0);
        for (int i = 0; i < 2 * TILES; ++i) {
            u64 tile = (u64)(ss + 512 * i >> 4) | 8ull << 16 | 8ull << 32 | 1ull << 46;
            asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(d + 128 + 4 * i), "l"(tile) : "memory");
        }
        wait(full, 0);
        after_sync();
        for (int k = 0; k < 4; ++k) {
            u32 at = d + 128 + 4 * (TILES == 1 ? 0 : k), beside = at + 4 * TILES;
#ifdef IDS
            at |= k << 30, beside |= k << 30;
#endif
            asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %6, 0;\n\t"
                         "tcgen05.mma.cta_group::1" FORM " [%0], %1, %2, %3, [%4], [%5], add;\n\t}"
                         ::"r"(d), "l"(matrix(sa + 32 * k, TCGEN05_128B)), "l"(matrix(sb + 32 * k, TCGEN05_128B)),
                           "r"(IDESC(k)), "r"(at), "r"(beside), "r"(k) : "memory");
        }
        commit(done);
    }
    wait(done, 0);
    after_sync();
    for (int part = 0; part < 4; ++part) {
        u32 v[32];
        read(d + ((threadIdx.x & 96) << 16) + 32 * part, v);
        for (int i = 0; i < 32; ++i) out[threadIdx.x * 128 + 32 * part + i] = v[i];
    }
    before_sync();
    __syncthreads();
    after_sync();
    if (threadIdx.x < 32) release(d, 256);
}
