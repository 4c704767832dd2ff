// Plain copies by the TMA engine, each way; a cache policy on the way out.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) bulk(u32 *out, const u32 *in) {
    __shared__ __align__(128) u32 line[128];
    __shared__ u64 bars[1];
    u32 t = threadIdx.x, bar = address(bars), at = address(line);
    if (t == 0) {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        init(bar, 1);
        init_fence();
        asm volatile("mbarrier.expect_tx.shared::cta.b64 [%0], 512;" ::"r"(bar) : "memory");
        arrive(bar);
        asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
                     ::"r"(at), "l"(in + 64), "r"(bar) : "memory");
        wait(bar, 0);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], 512, %2;\n\t"
                     "cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::"l"(out), "r"(at), "l"(policy) : "memory");
    }
}
