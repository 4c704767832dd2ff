// Two CTAs of a cluster hand each other words by st.async; halves of a CTA meet at a barrier where one does not wait;
// vectors of floats add up in global memory; a barrier is asked, not waited for.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(128) exchange(u32 *out, float *sums, const u32 *in) {
    __shared__ __align__(16) u32 got[256], own[64], last[128];
    __shared__ u64 bars[2];
    u32 t = threadIdx.x, rank = cluster_rank(), bar = address(bars), there = bar + 8;
    if (t == 0) {
        init(bar, 128);
        init(there, 1);
        init_fence();
    }
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
    if (t == 0) expect(there, 1024);
    // By way of generic addresses, as compilers of other languages do.
    u64 far;
    asm volatile("{\n\t.reg .u64 g;\n\tcvta.shared.u64 g, %1;\n\tcvta.to.shared::cluster.u64 %0, g;\n\t}"
                 : "=l"(far) : "l"((u64)address(got + 2 * t)));
    u32 x = in[rank * 128 + t], slot, signal;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(slot) : "r"((u32)far), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(signal) : "r"(there), "r"(rank ^ 1));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 ::"r"(slot), "r"(x), "r"(~x), "r"(signal) : "memory");
    wait(there, 0);
    out[(rank * 128 + t) * 4] = got[2 * t];
    out[(rank * 128 + t) * 4 + 1] = got[2 * t + 1];
    // Warps 0 and 1 write and go on, warps 2 and 3 wait for them.
    if (t < 64) {
        own[t] = x + 1;
        asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        x = own[t - 64];
    }
    out[(rank * 128 + t) * 4 + 2] = x;
    last[t] = t * 3;
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
    asm volatile("{\n\t.reg .pred done;\nASK:\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%0], 0;\n\t@!done bra ASK;\n\t}"
                 ::"r"(bar) : "memory");
    out[(rank * 128 + t) * 4 + 3] = last[127 - t];
    float a, b, c, d;
    asm volatile("atom.global.gpu.acq_rel.add.v4.f32 {%0, %1, %2, %3}, [%4], {%5, %6, %7, %8};"
                 : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
                 : "l"(sums + 4 * (t & 3)), "f"((float)t), "f"(1.f), "f"(2.f), "f"(-(float)rank) : "memory");
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
}
