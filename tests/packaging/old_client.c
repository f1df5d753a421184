/* A program built with an older header (old/tessella/tessella.h) and run against this library: what its shorter structs
 * lack has its default, and nothing is written past their ends. */
#include <math.h>
#include <string.h>
#include <tessella/tessella.h>

#include "expect.h"

enum { kRows = 2, kDim = 4 };

int main(void) {
  float q[kRows * kDim] = {0}, k[kRows * kDim] = {0}, out[kRows * kDim];
  float v[kRows * kDim] = {1, 2, 3, 4, 5, 6, 7, 8};
  tessella_tensor views[4];
  memset(views, 0, sizeof views);
  float* data[4] = {q, k, v, out};
  for (int i = 0; i < 4; ++i) {
    views[i].data = data[i];
    views[i].dtype = TESSELLA_F32;
    views[i].ndim = 2;
    views[i].shape[0] = kRows;
    views[i].shape[1] = kDim;
    views[i].strides[0] = kDim;
    views[i].strides[1] = 1;
  }
  const tessella_forward_args args = {sizeof args, &views[0], &views[1], &views[2], &views[3]};

  /* Behind the shorter struct lies what would be window_right: 0 there would mean causal if it were read. */
  struct {
    tessella_attention_options options;
    unsigned char not_ours[256];
  } memory;
  memset(&memory, 0, sizeof memory);
  memory.options.struct_size = sizeof memory.options;
  memory.options.scale = NAN;
  memory.options.window_left = -1;
  EXPECT(tessella_forward(&args, &memory.options, NULL) == TESSELLA_OK);
  EXPECT(out[0] == 3 && out[kDim] == 3); /* both rows see both keys */

  /* Behind these structs lies what would be scales and their block. */
  int32_t length = kRows;
  tessella_tensor seqlens;
  memset(&seqlens, 0, sizeof seqlens);
  seqlens.data = &length;
  seqlens.dtype = TESSELLA_I32;
  seqlens.ndim = 1;
  seqlens.shape[0] = seqlens.strides[0] = 1;
  struct {
    tessella_append_args args;
    unsigned char not_ours[256];
  } appended;
  struct {
    tessella_append_options options;
    unsigned char not_ours[64];
  } how;
  memset(&appended, 0xab, sizeof appended);
  memset(&how, 0xab, sizeof how);
  memset(&appended.args, 0, sizeof appended.args);
  memset(&how.options, 0, sizeof how.options);
  appended.args.struct_size = sizeof appended.args;
  appended.args.k_new = &views[2];
  appended.args.k = &views[1];
  appended.args.seqlens_kv = &seqlens;
  how.options.struct_size = sizeof how.options;
  EXPECT(tessella_append(&appended.args, &how.options, NULL) == TESSELLA_OK);
  EXPECT(memcmp(k, v, sizeof k) == 0);

  /* A call without options has the defaults. */
  struct {
    tessella_call call;
    unsigned char not_ours[64];
  } shorter;
  memset(&shorter, 0xab, sizeof shorter);
  shorter.call.struct_size = sizeof shorter.call;
  shorter.call.operation = TESSELLA_FORWARD;
  shorter.call.args = &args;
  tessella_plan* plan = NULL;
  EXPECT(tessella_plan_make(&shorter.call, &plan) == TESSELLA_OK);
  EXPECT(strstr(tessella_plan_explain(plan), "features: none") != NULL);
  tessella_plan_free(plan);

  struct {
    tessella_kernel_info info;
    unsigned char not_ours[64];
  } described;
  memset(&described, 0xab, sizeof described);
  described.info.struct_size = sizeof described.info;
  EXPECT(tessella_kernel_describe(0, &described.info) == TESSELLA_OK);
  EXPECT(described.info.struct_size == sizeof described.info && strlen(described.info.name) > 0 &&
         strcmp(described.info.operation, "forward") == 0);
  for (size_t i = 0; i < sizeof described.not_ours; ++i) EXPECT(described.not_ours[i] == 0xab);
  EXPECT(tessella_version() > 0);
  return num_failures != 0;
}
