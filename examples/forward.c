/* The C API, from C11: one call, and what a wrong one says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessella/tessella.h>

enum { batch = 1, seqlen = 128, heads = 4, head_dim = 32, size = batch * seqlen * heads * head_dim };

int main(void) {
  float* data = malloc(size * sizeof *data);
  float* result = malloc(size * sizeof *result);
  if (data == NULL || result == NULL) return 2;
  for (int i = 0; i < size; ++i) data[i] = sinf(0.37f * (float)i);

  const tessella_tensor x = TESSELLA_TENSOR4(data, TESSELLA_F32, batch, seqlen, heads, head_dim);
  const tessella_tensor out = TESSELLA_TENSOR4(result, TESSELLA_F32, batch, seqlen, heads, head_dim);
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  args.q = args.k = args.v = &x;
  args.out = &out;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  options.window_right = 0; /* causal */

  if (tessella_forward(&args, &options, NULL) != TESSELLA_OK) {
    fprintf(stderr, "%s\n", tessella_last_error());
    return 2;
  }
  printf("out[1] = %f, v[1] = %f\n", (double)result[1], (double)data[1]); /* the first row sees one key */

  const tessella_tensor shorter = TESSELLA_TENSOR4(data, TESSELLA_F32, batch, seqlen, heads, head_dim / 2);
  args.k = &shorter;
  const tessella_status status = tessella_forward(&args, &options, NULL);
  printf("%s\n", tessella_last_error());
  const int right = result[1] == data[1] && status == TESSELLA_INVALID_ARGUMENT;
  free(data);
  free(result);
  return right ? 0 : 1;
}
