// Functions between TESSELLA_AMX_BEGIN and TESSELLA_AMX_END may use AMX and AVX-512. Headers of other folders stay
// outside, at the baseline, so that no inline function of theirs is emitted with instructions other machines lack.
#pragma once

// clang-format off
#if defined(__clang__)
#define TESSELLA_AMX_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16\"))), apply_to = function)")
#define TESSELLA_AMX_END _Pragma("clang attribute pop")
#else
#define TESSELLA_AMX_BEGIN \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16\")")
#define TESSELLA_AMX_END _Pragma("GCC pop_options")
#endif
// clang-format on
