// Work by cluster launch control: a CTA goes on with the place of one that was not started yet.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) canceled(u32 *out) {
    __shared__ __align__(16) u32 answer[4];
    __shared__ u64 bars[1];
    u32 t = threadIdx.x, bar = address(bars), y, more = 1;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    if (t == 0) {
        init(bar, 1);
        init_fence();
    }
    __syncwarp();
    for (u32 phase = 0; more; phase ^= 1) {
        if (t == 0) {
            expect(bar, 16);
            asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 "
                         "[%0], [%1];" ::"r"(address(answer)), "r"(bar) : "memory");
        }
        out[y * 32 + t] = y * 100 + t;
        wait(bar, phase);
        asm volatile("{\n\t.reg .b128 r;\n\t.reg .pred p;\n\tld.shared.b128 r, [%2];\n\t"
                     "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n\tselp.u32 %1, 1, 0, p;\n\tmov.u32 %0, 0;\n\t"
                     "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %0, r;\n\t}"
                     : "=r"(y), "=r"(more) : "r"(address(answer)) : "memory");
        proxy_fence();
        __syncwarp();
    }
}
