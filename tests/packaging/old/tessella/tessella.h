/* The header of an older release, as a program that was built long ago saw it: shorter structs, fewer functions.
 * Kept by hand: it must stay a prefix of every struct it shares with include/tessella/tessella.h. */
#ifndef TESSELLA_TESSELLA_H
#define TESSELLA_TESSELLA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define TESSELLA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t tessella_status;
enum { TESSELLA_OK = 0, TESSELLA_INVALID_ARGUMENT = 1, TESSELLA_UNSUPPORTED = 2 };
typedef int32_t tessella_operation;
enum { TESSELLA_FORWARD = 1, TESSELLA_APPEND = 3 };
typedef int32_t tessella_dtype;
enum { TESSELLA_DTYPE_DEFAULT = 0, TESSELLA_F64 = 1, TESSELLA_F32 = 2, TESSELLA_I32 = 6 };
typedef int32_t tessella_device_type;

typedef struct tessella_tensor {
  void* data;
  tessella_dtype dtype;
  int32_t ndim;
  tessella_device_type device_type;
  int32_t device_id;
  int64_t shape[8];
  int64_t strides[8];
  uint64_t reserved[4];
} tessella_tensor;

typedef struct tessella_forward_args {
  size_t struct_size;
  const tessella_tensor* q;
  const tessella_tensor* k;
  const tessella_tensor* v;
  const tessella_tensor* out;
} tessella_forward_args;

typedef struct tessella_attention_options {
  size_t struct_size;
  float scale;
  float softcap;
  float dropout;
  int32_t causal_top_left;
  int64_t window_left;
} tessella_attention_options;

typedef struct tessella_append_args {
  size_t struct_size;
  const tessella_tensor* k_new;
  const tessella_tensor* v_new;
  const tessella_tensor* k;
  const tessella_tensor* v;
  const tessella_tensor* seqlens_kv;
} tessella_append_args;

typedef struct tessella_append_options {
  size_t struct_size;
  int32_t rotary_interleaved;
  int32_t num_sms;
  int32_t num_threads;
  int32_t check_device_values;
  int64_t max_seqlen_new;
  const char* kernel;
  const void* allocator;
  const int32_t* cancel;
} tessella_append_options;

typedef struct tessella_call {
  size_t struct_size;
  tessella_operation operation;
  const void* args;
} tessella_call;

typedef struct tessella_kernel_info {
  size_t struct_size;
  const char* name;
  const char* operation;
} tessella_kernel_info;

typedef struct tessella_plan tessella_plan;

TESSELLA_API tessella_status tessella_forward(const tessella_forward_args* args,
                                              const tessella_attention_options* options, void* stream);
TESSELLA_API tessella_status tessella_append(const tessella_append_args* args, const tessella_append_options* options,
                                             void* stream);
TESSELLA_API tessella_status tessella_plan_make(const tessella_call* call, tessella_plan** plan);
TESSELLA_API const char* tessella_plan_explain(const tessella_plan* plan);
TESSELLA_API void tessella_plan_free(tessella_plan* plan);
TESSELLA_API tessella_status tessella_kernel_describe(int32_t kernel_idx, tessella_kernel_info* info);
TESSELLA_API int32_t tessella_version(void);
TESSELLA_API const char* tessella_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* TESSELLA_TESSELLA_H */
