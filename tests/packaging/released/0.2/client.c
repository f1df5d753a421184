/* client.c as it was when 0.2 was released, with that header: it never changes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessella/tessella.h>

#include "../../expect.h"

enum { kRows = 3, kDim = 4 };

static float q[kRows * kDim], k[kRows * kDim], v[kRows * kDim], out[kRows * kDim], lse[kRows];
static int num_allocated = 0;

static void* allocate(size_t bytes, size_t alignment, void* stream, void* user) {
  (void)stream;
  ++*(int*)user;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release(void* data, size_t bytes, void* stream, void* user) {
  (void)bytes;
  (void)stream;
  (void)user;
  free(data);
}

/* With q = 0 every visible key weighs the same, so out is the mean of v over the keys that a row sees. */
static float mean_of_v(int num_keys, int dim) {
  float sum = 0;
  for (int j = 0; j < num_keys; ++j) sum += v[j * kDim + dim];
  return sum / (float)num_keys;
}

int main(void) {
  for (int i = 0; i < kRows * kDim; ++i) {
    k[i] = (float)i;
    v[i] = (float)(i * i);
  }
  const tessella_tensor q_view = TESSELLA_TENSOR2(q, TESSELLA_F32, kRows, kDim);
  const tessella_tensor k_view = TESSELLA_TENSOR2(k, TESSELLA_F32, kRows, kDim);
  const tessella_tensor v_view = TESSELLA_TENSOR2(v, TESSELLA_F32, kRows, kDim);
  const tessella_tensor out_view = TESSELLA_TENSOR2(out, TESSELLA_F32, kRows, kDim);
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  args.q = &q_view;
  args.k = &k_view;
  args.v = &v_view;
  args.out = &out_view;
  const tessella_tensor lse_view = TESSELLA_TENSOR1(lse, TESSELLA_F32, kRows);
  args.lse = &lse_view;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;

  EXPECT(tessella_version() >= TESSELLA_VERSION);
  EXPECT(strstr(tessella_info(), "threads") != NULL);
  EXPECT(tessella_forward(&args, NULL, NULL) == TESSELLA_OK);
  EXPECT(fabsf(out[0] - mean_of_v(kRows, 0)) < 1e-3f);
  EXPECT(fabsf(lse[0] - logf(kRows)) < 1e-5f); /* all scores are 0 */

  options.window_right = 0;
  EXPECT(tessella_forward(&args, &options, NULL) == TESSELLA_OK);
  for (int row = 0; row < kRows; ++row) {
    for (int dim = 0; dim < kDim; ++dim) EXPECT(fabsf(out[row * kDim + dim] - mean_of_v(row + 1, dim)) < 1e-3f);
  }

  const tessella_allocator allocator = {allocate, release, &num_allocated};
  options.allocator = &allocator;
  EXPECT(tessella_forward(&args, &options, NULL) == TESSELLA_OK);
  options.allocator = NULL;

  /* A plan, its workspace, its strings. */
  const tessella_call call = {sizeof call, TESSELLA_FORWARD, &args, &options};
  tessella_plan* plan = NULL;
  size_t state_bytes = 1, scratch_bytes = 1;
  EXPECT(tessella_plan_make(&call, &plan) == TESSELLA_OK);
  EXPECT(tessella_plan_workspace(plan, &state_bytes, &scratch_bytes) == TESSELLA_OK);
  EXPECT(strlen(tessella_plan_kernel(plan)) > 0 && strstr(tessella_plan_explain(plan), tessella_plan_kernel(plan)));
  tessella_workspace workspace = {aligned_alloc(64, state_bytes + 64 - state_bytes % 64), state_bytes,
                                  aligned_alloc(64, scratch_bytes + 64 - scratch_bytes % 64), scratch_bytes};
  EXPECT(tessella_plan_initialize(plan, &workspace, NULL) == TESSELLA_OK);
  memset(out, 0xff, sizeof out);
  EXPECT(tessella_plan_run(plan, &call, &workspace, NULL) == TESSELLA_OK);
  EXPECT(fabsf(out[0] - mean_of_v(1, 0)) < 1e-3f);
  free(workspace.state);
  free(workspace.scratch);
  tessella_plan_free(plan);

  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  EXPECT(tessella_check(&call, 3, 0, &report) == TESSELLA_OK);
  EXPECT(report.passed == 1 && report.rows == 3);

  /* Failures come as codes and messages; nothing is thrown into C. */
  const tessella_tensor narrow = TESSELLA_TENSOR2(k, TESSELLA_F32, kRows, kDim - 1);
  args.k = &narrow;
  EXPECT(tessella_forward(&args, &options, NULL) == TESSELLA_INVALID_ARGUMENT);
  EXPECT(strstr(tessella_last_error(), "expected") != NULL);
  EXPECT(tessella_forward(NULL, NULL, NULL) == TESSELLA_INVALID_ARGUMENT);

  /* Two sequences with one row in common: the first that writes beside it gets a page of its own. */
  tessella_pages* pages = NULL;
  int64_t ids[2], num_copies = 0;
  const int64_t one = 1, two = 2;
  tessella_page_copy copy;
  int32_t table[2];
  EXPECT(tessella_pages_make(4, 2, &pages) == TESSELLA_OK && tessella_pages_new_sequence(pages, ids) == TESSELLA_OK);
  EXPECT(tessella_pages_reserve(pages, ids, &one, 1, &copy, &num_copies) == TESSELLA_OK && num_copies == 0);
  EXPECT(tessella_pages_fork(pages, ids[0], ids + 1) == TESSELLA_OK);
  EXPECT(tessella_pages_reserve(pages, ids, &two, 1, &copy, &num_copies) == TESSELLA_OK && num_copies == 1);
  EXPECT(tessella_pages_table(pages, ids, 2, table, 1, 1) == TESSELLA_OK);
  EXPECT(copy.source == table[1] && copy.target == table[0]);
  EXPECT(tessella_pages_release(pages, ids, 2) == TESSELLA_OK &&
         tessella_pages_fork(pages, ids[0], ids) != TESSELLA_OK);
  tessella_pages_free(pages);

  tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
  EXPECT(tessella_kernel_count() > 0);
  EXPECT(tessella_kernel_describe(0, &info) == TESSELLA_OK && strlen(info.name) > 0);
  EXPECT(strcmp(info.operation, "forward") == 0 && strlen(info.architectures) > 0);
  EXPECT(tessella_kernel_describe(-1, &info) == TESSELLA_INVALID_ARGUMENT);
  return num_failures != 0;
}
