// Shared memory to the tensor memory of both CTAs of a pair by one instruction: 128 rows of 16 bytes each.
#define GROUP 2
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(128) tensor_copy(u32 *out, const u32 *in) {
    __shared__ __align__(1024) u32 rows[512];
    __shared__ u64 bars[1];
    __shared__ u32 place;
    u32 t = threadIdx.x, rank = cluster_rank(), bar = address(bars);
    if (t < 32) allocate(address(&place), 32);
    if (t == 32) {
        init(bar, 1);
        init_fence();
    }
    for (int i = 0; i < 4; ++i) rows[t * 4 + i] = in[(rank * 128 + t) * 4 + i];
    proxy_fence();
    before_sync();
    cluster_sync();
    after_sync();
    u32 at = place;
    if (rank == 0 && t == 0) {
        u64 tile = (u64)(address(rows) >> 4) | 8ull << 16 | 8ull << 32 | 1ull << 46;
        asm volatile("tcgen05.cp.cta_group::2.128x128b [%0], %1;" ::"r"(at), "l"(tile) : "memory");
        commit(bar);
    }
    wait(bar, 0);
    after_sync();
    u32 v[4];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];\n\ttcgen05.wait::ld.sync.aligned;"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at + ((t & 96) << 16)) : "memory");
    for (int i = 0; i < 4; ++i) out[(rank * 128 + t) * 4 + i] = v[i];
    before_sync();
    cluster_sync();
    after_sync();
    if (t < 32) release(at, 32);
}
