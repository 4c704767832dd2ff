// D[16, 8] = A B^T + C by one warp: rows of A and B are 32 bytes of K. -DFORM: the instruction; -DHALVES: C and D are f16.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) mma(u32 *d, const u32 *a, const u32 *b, const u32 *c) {
    u32 g = threadIdx.x / 4, q = threadIdx.x % 4;
    u32 a0 = a[g * 8 + q], a1 = a[(g + 8) * 8 + q], a2 = a[g * 8 + q + 4], a3 = a[(g + 8) * 8 + q + 4];
    u32 b0 = b[g * 8 + q], b1 = b[g * 8 + q + 4];
#ifdef HALVES
    u32 v[2] = {c[g * 4 + q], c[(g + 8) * 4 + q]};
    asm volatile(FORM " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(v[0]), "+r"(v[1]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    d[g * 4 + q] = v[0];
    d[(g + 8) * 4 + q] = v[1];
#else
    u32 at = g * 8 + 2 * q, v[4] = {c[at], c[at + 1], c[at + 64], c[at + 65]};
    asm volatile(FORM " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    d[at] = v[0], d[at + 1] = v[1], d[at + 64] = v[2], d[at + 65] = v[3];
#endif
}
