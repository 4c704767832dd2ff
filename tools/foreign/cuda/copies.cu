// A box by TMA and what each CTA of a pair then has of it. -DFORM: the load; -DRANK: its dimensions; -DMULTICAST: CTA 0
// loads for both; -DBOTH: the even CTA's barrier counts for both; -DSTORE: the box goes out by this instruction as well.
#include "common.cuh"

#define BYTES 2048

extern "C" __global__ void __launch_bounds__(128) copies(
    const __grid_constant__ Map map, u32 *out, const __grid_constant__ Map to) {
    __shared__ __align__(1024) u32 box[BYTES / 4];
    __shared__ u64 bars[1];
    u32 t = threadIdx.x, rank = cluster_rank(), bar = address(bars), at = address(box);
    if (t == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
        init(bar, 1);
        init_fence();
    }
    cluster_sync();
    if (t == 0) {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#ifdef BOTH
        u32 signal = bar & 0xfeffffff;
        if (rank == 0) expect(bar, 2 * BYTES);
#else
        u32 signal = bar;
        expect(bar, BYTES);
#endif
        int x = 16, y = MULTICAST ? 0 : rank;
        if (rank == 0 || !MULTICAST)
            asm volatile(FORM " [%0], [%1, {%3, %4"
#if RANK > 2
                         ", %5"
#endif
#if RANK > 3
                         ", %6"
#endif
                         "}], [%2]"
#if MULTICAST
                         ", %7"
#endif
                         ", %8;" ::"r"(at), "l"(&map), "r"(signal), "r"(x), "r"(y), "r"(y + 1), "r"(y), "h"((u16)3), "l"(policy)
                         : "memory");
    }
#ifdef BOTH
    if (rank == 0) wait(bar, 0);
    cluster_sync();
#else
    wait(bar, 0);
#endif
    for (int i = 0; i < BYTES / 512; ++i) out[rank * (BYTES / 4) + i * 128 + t] = box[i * 128 + t];
#ifdef STORE
    if (t == 0) {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile(STORE " [%0, {%2, %3}], [%1], %4;" ::"l"(&to), "r"(at), "r"(0), "r"(rank * 16), "l"(policy) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
    }
#endif
    cluster_sync();
}
