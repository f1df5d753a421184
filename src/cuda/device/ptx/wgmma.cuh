// Matrix instructions of a warpgroup (PTX wgmma, sm_90a): D = A . B + D, D 64 x N in fp32 registers.
//
// Warp w of the four owns rows 16 w to 16 w + 15; block j of 8 columns lies in a lane as an accumulator of ptx/mma.cuh,
// and four registers of a 16-bit A as that file's a[0..3]. Shared memory holds panels of 128-byte rows, swizzled as
// tile.cuh says.
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "portable/score_config.hpp"

namespace tessella::device::ptx {

using portable::Element;

// Call it before the first instruction that reads or writes registers which other instructions have touched.
__device__ __forceinline__ void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `Pending` of the latest groups are under way; `d`, which the others wrote, is read only after it.
template <int Pending, int Blocks>
__device__ __forceinline__ void wait_products(float (&d)[Blocks][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  keep_in_place(d);
}

// The axis of B along which elements are contiguous in shared memory: the summed one (k) or the columns (v).
enum class Contiguous { summed, columns };

// D += A . B; unless it adds, D starts from zero. with_shared: A and B from shared memory, A with the summed axis
// contiguous. with_registers: A from registers.
template <Element E, int N>
struct WarpgroupMma;

// The lists of registers that the assembler's syntax asks for.
#define TESSELLA_D(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TESSELLA_D8 TESSELLA_D(0)
#define TESSELLA_R8 "%0,%1,%2,%3"
#define TESSELLA_D16 TESSELLA_D(0), TESSELLA_D(1)
#define TESSELLA_R16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TESSELLA_D32 TESSELLA_D(0), TESSELLA_D(1), TESSELLA_D(2), TESSELLA_D(3)
#define TESSELLA_R32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TESSELLA_D64 \
  TESSELLA_D(0), TESSELLA_D(1), TESSELLA_D(2), TESSELLA_D(3), TESSELLA_D(4), TESSELLA_D(5), TESSELLA_D(6), TESSELLA_D(7)
#define TESSELLA_R64                                                                                                   \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31"
#define TESSELLA_D80 TESSELLA_D64, TESSELLA_D(8), TESSELLA_D(9)
#define TESSELLA_R80 TESSELLA_R64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TESSELLA_D96 TESSELLA_D80, TESSELLA_D(10), TESSELLA_D(11)
#define TESSELLA_R96 TESSELLA_R80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TESSELLA_D112 TESSELLA_D96, TESSELLA_D(12), TESSELLA_D(13)
#define TESSELLA_R112 TESSELLA_R96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TESSELLA_D128 TESSELLA_D112, TESSELLA_D(14), TESSELLA_D(15)
#define TESSELLA_R128 TESSELLA_R112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TESSELLA_D192                                                                                            \
  TESSELLA_D128, TESSELLA_D(16), TESSELLA_D(17), TESSELLA_D(18), TESSELLA_D(19), TESSELLA_D(20), TESSELLA_D(21), \
      TESSELLA_D(22), TESSELLA_D(23)
#define TESSELLA_R192                                                                                              \
  TESSELLA_R128                                                                                                    \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%" \
  "91,%92,%93,%94,%95"
#define TESSELLA_D256                                                                                            \
  TESSELLA_D192, TESSELLA_D(24), TESSELLA_D(25), TESSELLA_D(26), TESSELLA_D(27), TESSELLA_D(28), TESSELLA_D(29), \
      TESSELLA_D(30), TESSELLA_D(31)
#define TESSELLA_R256                                                                                            \
  TESSELLA_R192                                                                                                  \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%" \
  "118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// a to g: the numbers of the operands behind the accumulators.
#define TESSELLA_WGMMA(E, N, type, a, b, c, d_, e, f, g)                                                               \
  template <>                                                                                                          \
  struct WarpgroupMma<Element::E, N> {                                                                                 \
    template <Contiguous B = Contiguous::summed>                                                                       \
    __device__ __forceinline__ static void with_shared(float (&d)[N / 8][4], uint64_t a_desc, uint64_t b_desc,         \
                                                       bool adds) {                                                    \
      asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #c                                                       \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" TESSELLA_R##N                  \
                   "}, %" #a ", %" #b ", adds, 1, 1, 0, %" #d_ ";\n}"                                                  \
                   : TESSELLA_D##N                                                                                     \
                   : "l"(a_desc), "l"(b_desc), "r"(static_cast<int>(adds)), "n"(B == Contiguous::columns ? 1 : 0));    \
    }                                                                                                                  \
    template <Contiguous B>                                                                                            \
    __device__ __forceinline__ static void with_registers(float (&d)[N / 8][4], const uint32_t (&left)[4],             \
                                                          uint64_t b_desc, bool adds) {                                \
      asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #f                                                       \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" TESSELLA_R##N                  \
                   "}, {%" #a ", %" #b ", %" #c ", %" #d_ "}, %" #e ", adds, 1, 1, %" #g ";\n}"                        \
                   : TESSELLA_D##N                                                                                     \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b_desc), "r"(static_cast<int>(adds)), \
                     "n"(B == Contiguous::columns ? 1 : 0));                                                           \
    }                                                                                                                  \
  };
#define TESSELLA_WGMMAS(N, a, b, c, d, e, f, g)        \
  TESSELLA_WGMMA(bf16, N, "bf16", a, b, c, d, e, f, g) \
  TESSELLA_WGMMA(f16, N, "f16", a, b, c, d, e, f, g)
TESSELLA_WGMMAS(8, 4, 5, 6, 7, 8, 9, 10)
TESSELLA_WGMMAS(16, 8, 9, 10, 11, 12, 13, 14)
TESSELLA_WGMMAS(32, 16, 17, 18, 19, 20, 21, 22)
TESSELLA_WGMMAS(64, 32, 33, 34, 35, 36, 37, 38)
TESSELLA_WGMMAS(80, 40, 41, 42, 43, 44, 45, 46)
TESSELLA_WGMMAS(96, 48, 49, 50, 51, 52, 53, 54)
TESSELLA_WGMMAS(112, 56, 57, 58, 59, 60, 61, 62)
TESSELLA_WGMMAS(128, 64, 65, 66, 67, 68, 69, 70)
TESSELLA_WGMMAS(192, 96, 97, 98, 99, 100, 101, 102)
TESSELLA_WGMMAS(256, 128, 129, 130, 131, 132, 133, 134)
#undef TESSELLA_WGMMAS
#undef TESSELLA_WGMMA
// 8-bit operands have the summed axis contiguous; a left one in registers holds 32 columns, four consecutive ones a
// word.
#define TESSELLA_WGMMA_E4M3(N, a, b, c, d_, e, f)                                                                \
  template <>                                                                                                    \
  struct WarpgroupMma<Element::e4m3, N> {                                                                        \
    __device__ __forceinline__ static void with_shared(float (&d)[N / 8][4], uint64_t a_desc, uint64_t b_desc,   \
                                                       bool adds) {                                              \
      asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #c                                                 \
                   ", 0;\n"                                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TESSELLA_R##N "}, %" #a ", %" #b \
                                                                                              ", adds, 1, 1;\n}" \
                   : TESSELLA_D##N                                                                               \
                   : "l"(a_desc), "l"(b_desc), "r"(static_cast<int>(adds)));                                     \
    }                                                                                                            \
    template <Contiguous B = Contiguous::summed>                                                                 \
    __device__ __forceinline__ static void with_registers(float (&d)[N / 8][4], const uint32_t (&left)[4],       \
                                                          uint64_t b_desc, bool adds) {                          \
      static_assert(B == Contiguous::summed);                                                                    \
      asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #f                                                 \
                   ", 0;\n"                                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TESSELLA_R##N                    \
                   "}, {%" #a ", %" #b ", %" #c ", %" #d_ "}, %" #e ", adds, 1, 1;\n}"                           \
                   : TESSELLA_D##N                                                                               \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b_desc),                        \
                     "r"(static_cast<int>(adds)));                                                               \
    }                                                                                                            \
  };
TESSELLA_WGMMA_E4M3(64, 32, 33, 34, 35, 36, 37)
TESSELLA_WGMMA_E4M3(96, 48, 49, 50, 51, 52, 53)
TESSELLA_WGMMA_E4M3(128, 64, 65, 66, 67, 68, 69)
#undef TESSELLA_WGMMA_E4M3
#undef TESSELLA_D
#undef TESSELLA_D8
#undef TESSELLA_R8
#undef TESSELLA_D16
#undef TESSELLA_R16
#undef TESSELLA_D32
#undef TESSELLA_R32
#undef TESSELLA_D64
#undef TESSELLA_R64
#undef TESSELLA_D80
#undef TESSELLA_R80
#undef TESSELLA_D96
#undef TESSELLA_R96
#undef TESSELLA_D112
#undef TESSELLA_R112
#undef TESSELLA_D128
#undef TESSELLA_R128
#undef TESSELLA_D192
#undef TESSELLA_R192
#undef TESSELLA_D256
#undef TESSELLA_R256

}  // namespace tessella::device::ptx
