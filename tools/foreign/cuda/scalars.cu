// Instructions of one thread that compilers write and no other kernel here has; row k of `out` holds what the k-th of
// them gave in each of the 32 threads. Their parameters are read by name, in pieces as compilers read them.
#include "common.cuh"

struct Parts {
    u64 pair[2];
    u32 four[4];
    float real;
    u8 small[4];
};

__device__ __noinline__ u64 apart(u32 x, u64 y, float z) { return x * y + (u64)z; }

#define ROW out[row++ * 32 + t]
#define WORD(text, ...) { u32 r; asm volatile(text : "=r"(r) : __VA_ARGS__); ROW = r; }
#define LONG(text, ...) { u64 r; asm volatile(text : "=l"(r) : __VA_ARGS__); ROW = (u32)r; ROW = (u32)(r >> 32); }
#define REAL(text, ...) { float r; asm volatile(text : "=f"(r) : __VA_ARGS__); ROW = __float_as_uint(r); }
#define TEST(name, ...) WORD("{\n\t.reg .pred p;\n\t" name " p, %1, %2;\n\tselp.b32 %0, 1, 0, p;\n\t}", __VA_ARGS__)
#define HALF(name, ...) WORD("{\n\t.reg .b16 h;\n\t" name ";\n\tcvt.u32.u16 %0, h;\n\t}", __VA_ARGS__)

extern "C" __global__ void __launch_bounds__(32) scalars(u32 *out, const u32 *in, const __grid_constant__ Parts parts) {
    __shared__ __align__(16) u32 local[256];
    u32 t = threadIdx.x, row = 0, x = in[t], y = in[32 + t];
    u64 a = (u64)x << 32 | y, b = (u64)y << 32 | x;
    int i = (int)t - 16, j = 3 * (int)t - 40;
    float f = i * 0.75f, g = j * 0.5f;
    u16 h = (u16)x, k = (u16)(t & 1 ? x : y);
    u32 s = address(local + 4 * t);
    const u32 *own = in + 4 * (t & 7);
    asm volatile("" : "+l"(own));

    WORD("{\n\t.reg .b16 p, q;\n\tcvt.rn.bf16.f32 p, %1;\n\tcvt.rn.bf16.f32 q, %2;\n\tadd.bf16 p, p, q;\n\t"
         "mov.b32 %0, {p, q};\n\t}", "f"((float)i), "f"((float)j))
    LONG("and.b64 %0, %1, %2;", "l"(a), "l"(b))
    WORD("bfi.b32 %0, %1, %2, 5, 9;", "r"(x), "r"(y))
    REAL("fma.rm.f32 %0, %1, %2, %3;", "f"(f), "f"(1.1f), "f"(g))
    REAL("cvt.sat.f32.f32 %0, %1;", "f"(f * 0.125f))
    HALF("cvt.rn.f16.s16 h, %1", "h"((u16)j))
    WORD("cvt.rna.tf32.f32 %0, %1;", "f"(f * 1.1f))
    HALF("cvt.s16.s8 h, %1", "r"(x & 255))
    REAL("ld.f32 %0, [%1];", "l"((const float *)in + 64 + t))
    WORD("ld.global.L2::128B.u32 %0, [%1];", "l"(in + t))
    REAL("ld.global.f32 %0, [%1];", "l"((const float *)in + 64 + t))
    LONG("ld.global.u64 %0, [%1];", "l"((const u64 *)in + (t & 7)))
    asm volatile("st.shared.f32 [%0], %1;\n\tst.shared.v2.f32 [%0+8], {%2, %3};\n\tst.shared.b32 [%0+4], %4;"
                 ::"r"(s), "f"(f), "f"(g), "f"(f + g), "r"(x) : "memory");
    REAL("ld.shared.f32 %0, [%1+8];", "r"(s))
    WORD("{\n\t.reg .u32 p<3>;\n\tld.shared.v4.u32 {p0, p1, p2, %0}, [%1];\n\txor.b32 %0, %0, p1;\n\t}", "r"(s))
    LONG("{\n\t.reg .b128 q;\n\t.reg .b64 p;\n\tld.shared.b128 q, [%1];\n\tmov.b128 {%0, p}, q;\n\t}", "r"(s))
    WORD("{\n\t.reg .u32 p<4>;\n\tld.shared::cluster.b32 %0, [%1+4];\n\t}", "r"(s))
    WORD("{\n\t.reg .b16 p;\n\tld.param.b8 p, [scalars_param_2+38];\n\tcvt.u32.u16 %0, p;\n\t}", "r"(0))
    REAL("ld.param.f32 %0, [scalars_param_2+32];", "r"(0))
    WORD("{\n\t.reg .b32 p;\n\tld.param.v2.b32 {p, %0}, [scalars_param_2+16];\n\txor.b32 %0, %0, p;\n\t}", "r"(0))
    WORD("{\n\t.reg .b16 p, q;\n\tld.param.v2.b8 {p, q}, [scalars_param_2+36];\n\tmov.b32 %0, {p, q};\n\t}", "r"(0))
    WORD("{\n\t.reg .u32 p;\n\tld.param.v2.u32 {%0, p}, [scalars_param_2+24];\n\tsub.u32 %0, %0, p;\n\t}", "r"(0))
    LONG("{\n\t.reg .u64 p;\n\tld.param.v2.u64 {p, %0}, [scalars_param_2];\n\txor.b64 %0, %0, p;\n\t}", "r"(0))
    WORD("{\n\t.reg .b32 p<3>;\n\tld.param.v4.b32 {p0, p1, %0, p2}, [scalars_param_2+16];\n\tadd.u32 %0, %0, p2;\n\t}", "r"(0))
    WORD("{\n\t.reg .u32 p<3>;\n\tld.param.v4.u32 {p0, %0, p1, p2}, [scalars_param_2+16];\n\tadd.u32 %0, %0, p0;\n\t}", "r"(0))
    WORD("max.bf16x2 %0, %1, %2;", "r"((x & 0x3fff3fff)), "r"((y & 0xbfffbfff)))
    WORD("max.u32 %0, %1, %2;", "r"(x), "r"(y))
    WORD("min.u32 %0, %1, %2;", "r"(x), "r"(y))
    LONG("mul.hi.u64 %0, %1, %2;", "l"(a), "l"(b))
    WORD("redux.sync.max.s32 %0, %1, 0xffffffff;", "r"(x))
    WORD("{\n\t.reg .pred p;\n\tsetp.lt.s32 p, %1, 0;\n\tselp.s32 %0, %2, %3, p;\n\t}", "r"(i), "r"(x), "r"(y))
    WORD("{\n\t.reg .pred p;\n\t.reg .u16 q;\n\tsetp.lt.s32 p, %1, 0;\n\tselp.u16 q, %2, %3, p;\n\tcvt.u32.u16 %0, q;\n\t}",
         "r"(i), "h"(h), "h"(k))
    TEST("setp.eq.s16", "h"(h), "h"(k))
    TEST("setp.ne.s16", "h"(h), "h"(k))
    TEST("setp.ne.b16", "h"(h), "h"(k))
    TEST("setp.gt.u16", "h"(h), "h"((u16)y))
    TEST("setp.eq.s64", "l"(a), "l"(t & 1 ? a : b))
    TEST("setp.ne.s64", "l"(a), "l"(t & 2 ? a : b))
    TEST("setp.le.u64", "l"(a), "l"(b))
    TEST("setp.lt.u64", "l"(a), "l"(b))
    TEST("setp.eq.u32", "r"(x & 3), "r"(y & 3))
    TEST("setp.ge.u32", "r"(x), "r"(y))
    TEST("setp.num.f32", "f"(f), "f"(t & 4 ? __int_as_float(0x7fc00000) : g))
    HALF("shr.u16 h, %1, 3", "h"(h))
    LONG("sub.s64 %0, %1, %2;", "l"(a), "l"(b))
    REAL("abs.f32 %0, %1;", "f"(f))
    REAL("{\n\t.reg .f64 p;\n\tcvt.rn.f64.s64 p, %1;\n\tmul.f64 p, p, 0d3FE0000000000000;\n\tcvt.rn.f32.f64 %0, p;\n\t}",
         "l"((long long)j))
    WORD("ld.global.nc.b32 %0, [%1];", "l"(in + t))
    WORD("{\n\t.local .align 4 .b8 own[8];\n\tst.local.b32 [own+4], %1;\n\tld.local.b32 %0, [own+4];\n\t}", "r"(x))
    LONG("{\n\t.reg .u32 p, q;\n\tmad.lo.cc.u32 p, %1, %2, %3;\n\tmadc.hi.u32 q, %1, %2, 7;\n\tmov.b64 %0, {p, q};\n\t}",
         "r"(x), "r"(y), "r"(x))
    WORD("mov.s32 %0, %1;", "r"(j))
    TEST("setp.ne.b64", "l"(a), "l"(t & 2 ? a : b))
    WORD("shf.l.wrap.b32 %0, %1, %2, %3;", "r"(x), "r"(y), "r"(t + 3))
    HALF("mul.lo.s16 h, %1, %2", "h"(h), "h"(k))
    WORD("mul.wide.u16 %0, %1, %2;", "h"(h), "h"(k))
    {
        u64 r = apart(x, a, (float)t);
        ROW = (u32)r;
        ROW = (u32)(r >> 32);
    }
    asm volatile("st.global.u16 [%0], %1;\n\tst.global.u16 [%0+2], %2;" ::"l"(out + row++ * 32 + t), "h"(h), "h"(k) : "memory");
#if __CUDA_ARCH__ >= 1000
    asm volatile("st.global.v4.b64 [%0], {%1, %2, %1, %2};" ::"l"(out + row * 32 + 8 * t), "l"(a), "l"(b) : "memory");
    row += 8;
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %1, %2, %2, %1, %2, %1};" ::"l"(out + row * 32 + 8 * t), "r"(x), "r"(y) : "memory");
    row += 8;
    u64 v = (u64)__float_as_uint(g) << 32 | __float_as_uint(f), w = (u64)__float_as_uint(1.5f) << 32 | __float_as_uint(0.25f);
    LONG("add.rn.f32x2 %0, %1, %2;", "l"(v), "l"(w))
    LONG("mul.rn.f32x2 %0, %1, %2;", "l"(v), "l"(w))
    LONG("sub.rn.f32x2 %0, %1, %2;", "l"(v), "l"(w))
#endif
}
