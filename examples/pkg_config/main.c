/* Causal attention of 4 positions, through the C API. */
#include <stdio.h>
#include <tessella/tessella.h>

int main(void) {
  float q[] = {1, 0, 0, 1, 1, 1, 2, 0}, k[] = {1, 0, 0, 1, 1, 1, 2, 0}, v[] = {1, 10, 2, 20, 3, 30, 4, 40}, out[8];
  const tessella_tensor q_view = TESSELLA_TENSOR2(q, TESSELLA_F32, 4, 2);
  const tessella_tensor k_view = TESSELLA_TENSOR2(k, TESSELLA_F32, 4, 2);
  const tessella_tensor v_view = TESSELLA_TENSOR2(v, TESSELLA_F32, 4, 2);
  const tessella_tensor out_view = TESSELLA_TENSOR2(out, TESSELLA_F32, 4, 2);
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  args.q = &q_view;
  args.k = &k_view;
  args.v = &v_view;
  args.out = &out_view;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  options.window_right = 0; /* causal */
  if (tessella_forward(&args, &options, NULL) != TESSELLA_OK) {
    fprintf(stderr, "%s\n", tessella_last_error());
    return 1;
  }
  for (int i = 0; i < 4; ++i) printf("%8.4f %8.4f\n", out[2 * i], out[2 * i + 1]);
  return 0;
}
