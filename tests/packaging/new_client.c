/* A program of a newer release, whose structs have fields that this library does not know: left at zero they change
 * nothing; a set one is an error that names its offset, not ignored. */
#include <stdio.h>
#include <string.h>
#include <tessella/tessella.h>

#include "expect.h"

enum { kRows = 2, kDim = 4 };

typedef struct newer_options {
  tessella_attention_options known;
  int64_t invented;
  int64_t invented_too;
} newer_options;

typedef struct newer_call {
  tessella_call known;
  int64_t invented;
} newer_call;

typedef struct newer_args {
  tessella_forward_args known;
  const tessella_tensor* invented;
} newer_args;

/* The message names the field by its offset in the struct, for the library knows no name. */
static int names_byte(size_t offset) {
  char string[32];
  snprintf(string, sizeof string, "%zu", offset);
  return strstr(tessella_last_error(), string) != NULL;
}

int main(void) {
  float q[kRows * kDim] = {0}, k[kRows * kDim] = {0}, v[kRows * kDim] = {0}, out[kRows * kDim];
  const tessella_tensor q_view = TESSELLA_TENSOR2(q, TESSELLA_F32, kRows, kDim);
  const tessella_tensor k_view = TESSELLA_TENSOR2(k, TESSELLA_F32, kRows, kDim);
  const tessella_tensor v_view = TESSELLA_TENSOR2(v, TESSELLA_F32, kRows, kDim);
  const tessella_tensor out_view = TESSELLA_TENSOR2(out, TESSELLA_F32, kRows, kDim);
  newer_args args = {TESSELLA_FORWARD_ARGS_INIT, NULL};
  args.known.struct_size = sizeof args;
  args.known.q = &q_view;
  args.known.k = &k_view;
  args.known.v = &v_view;
  args.known.out = &out_view;
  newer_options options = {TESSELLA_ATTENTION_OPTIONS_INIT, 0, 0};
  options.known.struct_size = sizeof options;
  EXPECT(tessella_forward(&args.known, &options.known, NULL) == TESSELLA_OK);

  options.invented_too = 5;
  EXPECT(tessella_forward(&args.known, &options.known, NULL) == TESSELLA_UNSUPPORTED);
  EXPECT(strstr(tessella_last_error(), "options") && names_byte(offsetof(newer_options, invented_too)));
  options.invented_too = 0;

  args.invented = (const tessella_tensor*)(uintptr_t)1; /* never followed */
  EXPECT(tessella_forward(&args.known, &options.known, NULL) == TESSELLA_UNSUPPORTED);
  EXPECT(strstr(tessella_last_error(), "args") && names_byte(offsetof(newer_args, invented)));
  args.invented = NULL;

  newer_call call = {TESSELLA_CALL_INIT, 0};
  call.known.struct_size = sizeof call;
  call.known.operation = TESSELLA_FORWARD;
  call.known.args = &args.known;
  call.known.options = &options.known;
  tessella_plan* plan = NULL;
  EXPECT(tessella_plan_make(&call.known, &plan) == TESSELLA_OK);
  tessella_plan_free(plan);
  call.invented = 1;
  EXPECT(tessella_plan_make(&call.known, &plan) == TESSELLA_UNSUPPORTED);
  EXPECT(strstr(tessella_last_error(), "call") && names_byte(offsetof(newer_call, invented)));
  call.invented = 0;
  call.known.operation = 1000; /* of a newer release */
  EXPECT(tessella_plan_make(&call.known, &plan) == TESSELLA_UNSUPPORTED);
  EXPECT(strstr(tessella_last_error(), "operation is 1000") != NULL);
  return num_failures != 0;
}
