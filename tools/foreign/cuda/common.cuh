// What the kernels beside this file share: addresses, barriers, copies by TMA, descriptors of matrices. Each function is
// one instruction of PTX or a handful. No headers: what nvcc makes of these files is ours alone.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map {
    u64 words[16];
};

#define DEVICE static __device__ __forceinline__
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define TEXT_(...) #__VA_ARGS__
#define TEXT(...) TEXT_(__VA_ARGS__)

DEVICE u32 address(const void *p) {
    u32 a;
    asm("{\n\t.reg .u64 wide;\n\tcvta.to.shared.u64 wide, %1;\n\tcvt.u32.u64 %0, wide;\n\t}" : "=r"(a) : "l"(p));
    return a;
}
DEVICE u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// Barriers in shared memory.
DEVICE void init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DEVICE void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void wait(u32 bar, u32 parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "AGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra AGAIN;\n\t}" ::"r"(bar),
        "r"(parity)
        : "memory");
}
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies of two dimensions; `x` is the inner coordinate.
DEVICE void load(u32 to, const Map &map, u32 bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(&map), "r"(bar), "r"(x), "r"(y) : "memory");
}
DEVICE void store(const Map &map, u32 from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(&map), "r"(from), "r"(x), "r"(y) : "memory");
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
}

// A K-major operand in 128-byte swizzled rows: 1024 bytes from one group of eight rows to the next.
DEVICE u64 matrix(u32 at, u64 kind) { return (u64)(at >> 4) | 1ull << 16 | 64ull << 32 | kind; }
#define WGMMA_128B (1ull << 62)
#define TCGEN05_128B (1ull << 46 | 2ull << 61)

// Tensor memory. GROUP is 1, or 2 for the pair of CTAs that multiply together.
#ifndef GROUP
#define GROUP 1
#endif
#define CTA_GROUP ".cta_group::" TEXT(GROUP)

DEVICE void allocate(u32 to, u32 columns) {
    asm volatile("tcgen05.alloc" CTA_GROUP ".sync.aligned.shared::cta.b32 [%0], %1;\n\t"
                 "tcgen05.relinquish_alloc_permit" CTA_GROUP ".sync.aligned;" ::"r"(to), "r"(columns) : "memory");
}
DEVICE void release(u32 at, u32 columns) {
    asm volatile("tcgen05.dealloc" CTA_GROUP ".sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns) : "memory");
}
DEVICE void before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
DEVICE void commit(u32 bar) {
#if GROUP == 2
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
                 ::"r"(bar), "h"((u16)3) : "memory");
#else
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
#endif
}
// 32 columns of the warp's own lanes.
DEVICE void read(u32 at, u32 (&v)[32]) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n\t"
        "tcgen05.wait::ld.sync.aligned;"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]), "=r"(v[8]),
          "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]), "=r"(v[16]),
          "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]),
          "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
        : "r"(at) : "memory");
}
