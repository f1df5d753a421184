/* Tessella: exact attention, tile by tile. The C API, the stable ABI; the C++ headers are inline code over it.
 *
 * Every function returns a tessella_status; the message of a failure is tessella_last_error(). Nothing here prints,
 * aborts or exits. All functions may be called from any thread. Structs that may grow begin with struct_size: set
 * them with their _INIT macro. A shorter struct of an older program means defaults for what it lacks; a longer one of
 * a newer program is an error, `unsupported`, if it sets a field that this library does not know.
 */
#ifndef TESSELLA_TESSELLA_H
#define TESSELLA_TESSELLA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define TESSELLA_VERSION_MAJOR 0
#define TESSELLA_VERSION_MINOR 2
#define TESSELLA_VERSION_PATCH 0
#define TESSELLA_VERSION (TESSELLA_VERSION_MAJOR * 10000 + TESSELLA_VERSION_MINOR * 100 + TESSELLA_VERSION_PATCH)

#if defined(_WIN32)
#define TESSELLA_API
#else
#define TESSELLA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t tessella_status;
enum {
  TESSELLA_OK = 0,
  TESSELLA_INVALID_ARGUMENT = 1, /* a precondition does not hold; nothing was touched */
  TESSELLA_UNSUPPORTED = 2,      /* valid, but no kernel here computes it; the message says why */
  TESSELLA_OUT_OF_MEMORY = 3,
  TESSELLA_DEVICE = 4,
  TESSELLA_COMPILE = 5,
  TESSELLA_IO = 6,
  TESSELLA_INTERNAL = 7, /* a defect of the library */
  TESSELLA_CANCELLED = 8 /* the flag of option cancel was set; out and lse hold no result */
};

typedef int32_t tessella_dtype;
enum {
  TESSELLA_DTYPE_DEFAULT = 0,
  TESSELLA_F64 = 1,
  TESSELLA_F32 = 2,
  TESSELLA_BF16 = 3,
  TESSELLA_F16 = 4,
  TESSELLA_BOOL = 5, /* one byte, 0 = false */
  TESSELLA_I32 = 6,
  TESSELLA_I64 = 7,
  TESSELLA_U8 = 8,
  TESSELLA_I8 = 9,
  TESSELLA_I4 = 10, /* two a byte, the first in the low bits; strides are even, except the innermost, which is 1 */
  TESSELLA_F8E4M3FN = 11,
  TESSELLA_F8E5M2 = 12
};

/* What a tessella_call asks for. Its args and options are the structs named here. */
typedef int32_t tessella_operation;
enum {
  TESSELLA_FORWARD = 1,    /* tessella_forward_args, tessella_attention_options */
  TESSELLA_BACKWARD = 2,   /* tessella_backward_args, tessella_attention_options */
  TESSELLA_APPEND = 3,     /* tessella_append_args, tessella_append_options */
  TESSELLA_MERGE = 4,      /* tessella_merge_args, tessella_merge_options */
  TESSELLA_QUANTIZE = 5,   /* tessella_quantize_args, tessella_quantize_options */
  TESSELLA_LINEAR = 6,     /* tessella_linear_args, tessella_linear_options */
  TESSELLA_COPY_PAGES = 7, /* tessella_copy_pages_args, tessella_copy_pages_options */
  TESSELLA_DEQUANTIZE = 8  /* tessella_dequantize_args, tessella_dequantize_options */
};

typedef int32_t tessella_device_type; /* DLPack's numbers */
enum {
  TESSELLA_DEVICE_DEFAULT = 0, /* found out from the pointer; managed memory is the GPU's it was made for */
  TESSELLA_CPU = 1,
  TESSELLA_CUDA = 2
};

/* Flags of a tensor. The memory of one that is read-only must not be written, so no call may write it. A transposed one
 * is (batch, heads, head_dim, rows), as tessella_quantize_args says; only where that is said. */
enum { TESSELLA_READ_ONLY = 1, TESSELLA_TRANSPOSED = 2 };

/* A view of memory that somebody else owns. Frozen: this layout never changes.
 * Attention operands are (batch, seqlen, heads, head_dim); 3-D (seqlen, heads, head_dim) and 2-D (seqlen, head_dim)
 * count as batch 1 and head 1; with cu_seqlens, 3-D is packed (total, heads, head_dim). head_dim is contiguous.
 * Any other memory layout is a matter of strides. data is aligned to its elements. */
typedef struct tessella_tensor {
  void* data;
  tessella_dtype dtype;
  int32_t ndim;
  tessella_device_type device_type;
  int32_t device_id;
  int64_t shape[8];
  int64_t strides[8];   /* in elements; 0 repeats an axis */
  uint64_t flags;       /* of TESSELLA_READ_ONLY and TESSELLA_TRANSPOSED */
  uint64_t reserved[3]; /* zero */
} tessella_tensor;

/* Dense (b, s, h, d) memory; and (b, h, s, d) memory seen as (b, s, h, d). */
#define TESSELLA_TENSOR4(data, dtype, b, s, h, d)                                                                    \
  {                                                                                                                  \
    (data), (dtype), 4, 0, 0, {(b), (s), (h), (d)}, {(int64_t)(s) * (h) * (d), (int64_t)(h) * (d), (d), 1}, 0, { 0 } \
  }
#define TESSELLA_TENSOR4_BHSD(data, dtype, b, s, h, d)                                                               \
  {                                                                                                                  \
    (data), (dtype), 4, 0, 0, {(b), (s), (h), (d)}, {(int64_t)(s) * (h) * (d), (d), (int64_t)(s) * (d), 1}, 0, { 0 } \
  }
#define TESSELLA_TENSOR3(data, dtype, s, h, d)                                        \
  {                                                                                   \
    (data), (dtype), 3, 0, 0, {(s), (h), (d)}, {(int64_t)(h) * (d), (d), 1}, 0, { 0 } \
  }
#define TESSELLA_TENSOR2(data, dtype, s, d)                  \
  {                                                          \
    (data), (dtype), 2, 0, 0, {(s), (d)}, {(d), 1}, 0, { 0 } \
  }
#define TESSELLA_TENSOR1(data, dtype, n)           \
  {                                                \
    (data), (dtype), 1, 0, 0, {(n)}, {1}, 0, { 0 } \
  }

/* generated: forward_args, from src/api/arguments.toml */
/* Every pointer of a forward call. NULL = absent. q, k, v and out are required. All tensors of a call lie on one
 * device. Values of tensors on a GPU (lengths, ids) are not read by the call: the kernels clamp them, so that none
 * makes them read or write outside of the tensors. check_device_values has them checked as on the CPU.
 *
 *   q              (batch, seqlen_q, heads_q, head_dim_qk), f64, f32, bf16 or f16   also f8e4m3fn and f8e5m2, beside k
 *                  and v of the same dtype; no kernel computes q of i8 or i4
 *   k, v           (batch, seqlen_kv, heads_kv, head_dim_qk or head_dim_v)   heads_kv divides heads_q; each has a dtype
 *                  of q's list of its own. Kernels take that of q; some take f8e4m3fn, i8 and i4 (k and v alike) beside
 *                  q of f32, bf16 or f16. v may be the first columns of k. v of f8e4m3fn or f8e5m2 with the flag
 *                  TESSELLA_TRANSPOSED is (batch, heads_kv, head_dim_v, seqlen_kv in whole tiles of 128), as
 *                  tessella_quantize writes it; what lies behind the last key may be anything. Not beside page_table,
 *                  cache_batch_idx and cu_seqlens_kv
 *   out            (batch, seqlen_q, heads_q, head_dim_v), dtype of q, or f32   it shares no byte with an input; it may
 *                  be a view of one buffer with them, in other bytes. For q of 8 or 4 bits also bf16 and f16; f8e4m3fn
 *                  and f8e5m2 for any q
 *   lse            (batch, heads_q, seqlen_q), packed (heads_q, total_q), f32 (f64 allowed for f64 inputs)   natural
 *                  logarithm of the softmax's sum, sink included; -inf for a row that sees no key
 *   q_scale, k_scale, v_scale   (batch or page, ceil(rows / scale_block), heads), f32   factors on q, k and v; each
 *                  axis may be 1 and leading ones may be left out. Row r of a head has the factor of block r /
 *                  scale_block; scale_block 0 is one block for all rows. Pools of pages have a page in place of batch,
 *                  and blocks of a page's rows; packed tensors have blocks of their rows and one batch, or a batch and
 *                  one block. They may lie in memory between their rows. A factor is given only beside a tensor of 8 or
 *                  4 bits. Those of k and v are required beside q of other dtypes: where a cache has none, one scale of
 *                  1
 *   out_scale      as q_scale, over out, f32   out, of f8e4m3fn or f8e5m2, holds the result divided by it, rounded to
 *                  nearest even; what is beyond the largest number becomes that. A scale below 2^-90 in size counts as
 *                  zero, and then out is 0
 *   amax           as q_scale, over out, f32   written: the largest |result| that an entry covers, before it is divided
 *                  and rounded; 0 where it covers none
 *   seqlens_q, seqlens_kv   (batch) i32   valid lengths of q, and of k and v; out rows past seqlens_q are 0, their lse
 *                  -inf
 *   cu_seqlens_q, cu_seqlens_kv   (batch + 1) i32   packed variable length: sequence b is rows [cu[b], cu[b + 1]) of
 *                  (total, heads, head_dim), cu[0] = 0; out rows of no sequence are 0, their lse -inf
 *   leftpad_kv     (batch) i32   keys [0, leftpad) are padding. Positions (windows, causal, chunk, keep_first,
 *                  prefix_lengths, ALiBi, dropout, modifications) count from the first real key; tensors with an axis
 *                  of keys (bias, dense_mask, block_map, document_ids_kv), and seqlens_kv, have k's rows, padding too
 *   page_table     (batch, pages) i32   k and v are pools (num_pages, page_size, heads_kv, head_dim), and key j of a
 *                  sequence is row j % page_size of page page_table[b, floor(j / page_size)]; seqlen_kv is pages *
 *                  page_size. Pages without a valid key may hold anything, and so may their entries. -1 is a page that
 *                  was evicted: the band (window, causal, chunk, keep_first, prefix, lengths; not masks of elements)
 *                  must hide its keys from all queries of the sequence, which a CPU checks. The pools have a page of a
 *                  row at least. Not beside cu_seqlens_kv
 *   cache_batch_idx   (batch) i32   sequence b is that of batch cache_batch_idx[b] of k and v, whose batch axes may
 *                  then have any size of one at least: the slots of a cache. Several sequences may have one slot.
 *                  Entries of sequences without a valid key may hold anything. What belongs to keys (bias, masks,
 *                  seqlens_kv, document_ids_kv) stays that of sequence b; k_scale and v_scale are the slots'. Not
 *                  beside page_table or cu_seqlens_kv
 *   draft_mask     (batch or 1, seqlen_q, seqlen_q), or (seqlen_q, seqlen_q) for all, bool   true = visible: the last
 *                  keys of a sequence are those of its queries, as many as are valid, and query i sees the key of query
 *                  j only where draft_mask[b, i, j] is true. The other masks decide about the keys before them. This
 *                  serves a tree of drafted tokens, in which each sees itself and its ancestors. Where a sequence has
 *                  fewer keys than queries, its keys are those of its last queries. Beside cu_seqlens_q its axes are
 *                  those of the longest sequence, as of bias
 *   schedule       (n), i32 on the GPU   of tessella_plan_schedule_size_for bytes at least: what tessella_plan_schedule
 *                  wrote. It says how the keys of ragged sequences are split. Runs count in it what is done: one stream
 *                  at a time uses it, and it overlaps nothing else of the call. Not beside batch_invariant or
 *                  num_splits. Beside a mask that has a map it is that map, as mask_map, until the next SOVERSION
 *   mask_map       (n), i32 on the GPU   of tessella_plan_mask_map_size bytes at least: what tessella_plan_mask_map
 *                  wrote, the map of documents, dense_mask, block_map, key_ranges, query_ranges or mask_mod. It says
 *                  what each 64 queries see of each key. A run with it does not read the mask to find the tiles that it
 *                  hides. Runs of any stream, forward and backward, may read it at the same time
 *   bias           broadcasts to (batch, heads_q, seqlen_q, seqlen_kv), f32 or dtype of q   added to scaled scores.
 *                  Beside cu_seqlens it counts the queries or keys of each sequence from its first, as dense_mask and
 *                  block_map do: its axes are those of the longest sequence, up to max_seqlen_q and max_seqlen_kv where
 *                  given, not the packed rows. On a GPU, where lengths are not read, these have to be given. A key with
 *                  a bias of -inf has probability 0 and is not hidden: NaN and infinity in its v may reach the output
 *   alibi_slopes   (heads_q) or (batch, heads_q), f32   adds -slope * |i + seqlen_kv - seqlen_q - j|
 *   sink           (heads_q) f32   logits that join the softmax's sum and no value
 *   dense_mask     broadcasts to (batch, heads_q, seqlen_q, seqlen_kv), bool   true = visible; axes as of bias
 *   block_map      broadcasts to (batch, heads_q, ceil(seqlen_q / block_map_q), ceil(seqlen_kv / block_map_kv)), bool
 *                  true = visible; axes as of bias
 *   document_ids_q, document_ids_kv   (batch, seqlen), packed (total), i32   a key is visible iff the ids are equal
 *   prefix_lengths (batch) i32   keys below the length are visible to all queries, later ones causally
 *   key_ranges     (batch or 1, heads_q or 1, seqlen_q, n, 2), packed (1, heads_q or 1, total_q, n, 2), i32   for each
 *                  query n ranges [start, end) of the keys that it sees, 1 to 8, sorted and disjoint; an empty one may
 *                  stand anywhere, and an end may lie past the keys. The first axes may be absent. Keys count as those
 *                  of bias do: rows of the sequence, left padding too
 *   query_ranges   (batch or 1, heads_q or 1, seqlen_kv, n, 2), packed (1, heads_q or 1, total_kv, n, 2), i32
 *                  likewise for each key the queries that see it, which count from the first of the sequence. Its rows
 *                  are those of document_ids_kv
 *   seed, offset   (1) i64   dropout's seed and offset where they live in memory; they replace those of the options
 *   mod_args       num_mod_args dense tensors, at most 8, f32, bf16, f16, i32 or bool: what score_mod and mask_mod read
 */
typedef struct tessella_forward_args {
  size_t struct_size;
  const tessella_tensor* q;
  const tessella_tensor* k;
  const tessella_tensor* v;
  const tessella_tensor* out;
  const tessella_tensor* lse;
  const tessella_tensor* q_scale;
  const tessella_tensor* k_scale;
  const tessella_tensor* v_scale;
  const tessella_tensor* out_scale;
  const tessella_tensor* amax;
  const tessella_tensor* seqlens_q;
  const tessella_tensor* seqlens_kv;
  const tessella_tensor* cu_seqlens_q;
  const tessella_tensor* cu_seqlens_kv;
  const tessella_tensor* leftpad_kv;
  const tessella_tensor* page_table;
  const tessella_tensor* bias;
  const tessella_tensor* alibi_slopes;
  const tessella_tensor* sink;
  const tessella_tensor* dense_mask;
  const tessella_tensor* block_map;
  const tessella_tensor* document_ids_q;
  const tessella_tensor* document_ids_kv;
  const tessella_tensor* prefix_lengths;
  const tessella_tensor* key_ranges;
  const tessella_tensor* draft_mask;
  const tessella_tensor* seed;
  const tessella_tensor* offset;
  const tessella_tensor* mod_args;
  int32_t num_mod_args;
  const tessella_tensor* cache_batch_idx;
  const tessella_tensor* schedule;
  const tessella_tensor* query_ranges;
  const tessella_tensor* mask_map;
} tessella_forward_args;

#define TESSELLA_FORWARD_ARGS_INIT                                                                                     \
  {                                                                                                                    \
    sizeof(tessella_forward_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0                                                                                               \
  }
/* end of generated */

/* Where plain calls take their workspace from; on a GPU they keep 4096 bytes a stream of their own beside it. alloc
   returns memory aligned to `alignment`, or NULL. Frozen. */
typedef struct tessella_allocator {
  void* (*alloc)(size_t bytes, size_t alignment, void* stream, void* user);
  void (*free)(void* data, size_t bytes, void* stream, void* user);
  void* user;
} tessella_allocator;

/* generated: attention_options, from src/api/arguments.toml */
/* What is computed. Masks are a conjunction: a key is visible iff every part given says so.
 * scores = scale * q.k -> softcap -> + bias + ALiBi -> score_mod -> masks -> softmax with sink -> dropout -> . v
 *
 * score_mod and mask_mod are C++ source, compiled when the plan is made (GPU only), the bodies of
 *   float score_mod(float score, int b, int h, int q, int k, float q_minus_k, const Arrays& arrays)   the new score
 *   bool mask_mod(int b, int h, int q, int k, const Arrays& arrays)                                    true = visible
 * Scores are in natural units; b and h are batch and query head; q and k count in the sequence's own coordinates, its
 * first real query and key 0. q_minus_k is their difference as a float, exact below 2^23, and faster than float(q - k).
 * arrays.f32(n), arrays.i32(n), arrays.boolean(n) are const pointers to tensor n of mod_args, arrays.count(n) its
 * number of elements. The source has to stay within them: nothing checks that.
 *
 * A call that computes a slice of a whole says with first_* where the slice begins: batch, head, query and key of its
 * first element; whole_heads_q says how many query heads the whole has, by which dropout counts. Dropout, ALiBi and
 * modifications then count from there; masks and all tensors stay the slice's own. ALiBi's distance is |first_query + i
 * - first_key - j| where first_query or first_key is not 0, and the slice's own where both are 0: slices of queries are
 * the whole's rows where the whole has as many queries as keys, and the first slice sees keys up to its last query.
 * Only the reference and the ladder compute slices yet.
 *
 * dropout is rounded to a multiple of 1 / 65536; a probability above 0 is at least one of them and at most 65535. What
 * is not zeroed is divided by what that multiple leaves of 1. The entries are a pure function of seed, offset, batch,
 * head, query and key. The seed is the caller's: calls with the same seed and offset, 0 where not set, drop the same
 * entries.
 *
 * batch_invariant: the kernel, its tiles and the points where it splits keys depend on heads, head dims, dtypes and
 * options alone, not on lengths. query_class says which kernels may run: those for few queries, or those for many,
 * which is also the automatic choice. The bits of a row may differ between the two. cuda.decode and cpu.decode_* are
 * for few queries; every other kernel is for many, and reference.attention is for both. Where no other CPU kernel takes
 * a call (k and v of 8 or 4 bits, head dims above 512), cpu.decode_* is for many too. Keys are split at multiples of a
 * constant, so num_splits is 0 or 1.
 *
 * cache_settled: a promise. Nothing that the call reads, but q, is written by the kernel that stands just before it in
 * the stream: caches, lengths, page table and schedule were written by kernels further back. Loads of keys then begin
 * while that kernel still runs. A kernel before that lets others begin early does so after it has waited for its own,
 * as this library's do. Kernels that do not begin early ignore it. Where the promise does not hold, results of this
 * call and of later ones on the stream are not defined. */
typedef struct tessella_attention_options {
  size_t struct_size;
  /* factor on q.k; NaN = 1 / sqrt(head_dim_qk) */
  float scale;
  /* c * tanh(s / c); 0 = off */
  float softcap;
  /* probability of a zero, in [0, 1); see above */
  float dropout;
  /* 1: key j is visible iff j <= i */
  int32_t causal_top_left;
  /* keys before i + seqlen_kv - seqlen_q; -1 = no bound */
  int64_t window_left;
  /* keys after it; 0 = causal (bottom-right), -1 = no bound */
  int64_t window_right;
  /* a query sees the keys of its own chunk of this many; 0 = off */
  int64_t chunk;
  /* so many first keys stay visible whatever window_left and chunk say */
  int64_t keep_first;
  /* queries of one entry of block_map */
  int64_t block_map_q;
  /* keys of one entry of block_map */
  int64_t block_map_kv;
  /* seed and offset of dropout; nothing is drawn in their place */
  uint64_t seed;
  uint64_t offset;
  /* batch, head, query and key at which the call's slice begins in the whole */
  int64_t first_batch;
  int64_t first_head;
  int64_t first_query;
  int64_t first_key;
  /* query heads of the whole; 0 = heads_q */
  int64_t whole_heads_q;
  /* modifications as C++ source; NULL or "" = none */
  const char* score_mod;
  /* its gradient, for a backward: the body of float score_mod_gradient(float score, float d_score, ...) */
  const char* score_mod_gradient;
  /* a mask as C++ source */
  const char* mask_mod;
  /* rows that have one entry of q_scale, k_scale, v_scale, out_scale, amax; 0 = all */
  int64_t scale_block;
  /* checked against out where given */
  tessella_dtype out_dtype;
  /* the same bits in every run: 0 = the library's choice, 1 = required, 2 = not needed: gradients on a GPU may then be
     faster and differ in their last bits */
  int32_t deterministic;
  /* 1: a row's bits do not depend on batch, lengths or how queries are cut into calls */
  int32_t batch_invariant;
  /* with batch_invariant: 0 = automatic, 1 = few queries, 2 = many */
  int32_t query_class;
  /* into how many parts kernels that can do so split the keys of a sequence and KV head; other kernels are not eligible
     for more than 1. 0 = automatic */
  int32_t num_splits;
  /* GPU: 0 = all */
  int32_t num_sms;
  /* CPU: 0 = all that the process may use */
  int32_t num_threads;
  /* GPU: waits for the stream and checks lengths as on the CPU; not in a graph capture */
  int32_t check_device_values;
  /* upper bounds a plan is made for, and of packed lengths on a GPU; 0 = the tensors' sizes */
  int64_t max_seqlen_q;
  int64_t max_seqlen_kv;
  /* name of the kernel to run; it runs or fails with its reason. NULL = automatic */
  const char* kernel;
  /* NULL = the library's own */
  const tessella_allocator* allocator;
  /* a flag that another thread sets to nonzero, atomically, to have the call return CANCELLED. CPU kernels and
     tessella_check read it every few milliseconds; on a GPU it is read before the launch alone. In host memory. NULL =
     none */
  const int32_t* cancel;
  /* 1: see above. A plan serves calls with and without it */
  int32_t cache_settled;
  /* beside q of f64 the factor with all its digits; 0 = scale */
  double scale_f64;
} tessella_attention_options;

#define TESSELLA_ATTENTION_OPTIONS_INIT                                                                                \
  {                                                                                                                    \
    sizeof(tessella_attention_options), NAN, 0, 0, 0, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                                                \
  }
/* end of generated */

/* Gradients, one bit each. */
typedef int32_t tessella_gradient;
enum {
  TESSELLA_DQ = 1,
  TESSELLA_DK = 2,
  TESSELLA_DV = 4,
  TESSELLA_D_BIAS = 8,
  TESSELLA_D_SINK = 16,
  TESSELLA_D_ALIBI_SLOPES = 32
};

/* generated: backward_args, from src/api/arguments.toml */
/* The gradients of a forward call. forward and d_out are required, and at least one of what is written, dq to
 * d_alibi_slopes. NULL = absent; what is not asked for is not computed.
 *
 *   forward        the arguments of the call, with the out and lse that it wrote, which are inputs here; lse is
 *                  required, in f64 beside f64 inputs if their gradients are to have f64's digits. The options are
 *                  those of the call too. page_table, cache_batch_idx, draft_mask and scales are not supported, nor is
 *                  a schedule that is not the map of the mask
 *   d_out          shape of out, dtype of out or of q, or f32   gradient of out
 *   d_lse          shape of lse, f32 (f64 allowed for f64 inputs)   NULL = 0
 *   dq, dk, dv     shapes of q, k and v, dtype of q, or f32   written
 *   d_bias         shape of bias, its dtype, or f32   the sum over axes on which bias broadcasts
 *   d_sink         (heads_q) f32   written
 *   d_alibi_slopes shape of alibi_slopes, f32   written
 *   accumulate     bits of tessella_gradient: these are added to what is there, in fp32 and rounded once
 *
 * A query that sees no key has gradients of 0, and so have rows past the lengths and keys that no query may see,
 * whatever they hold. Gradients overlap no input and not each other. */
typedef struct tessella_backward_args {
  size_t struct_size;
  const tessella_forward_args* forward;
  const tessella_tensor* d_out;
  const tessella_tensor* d_lse;
  const tessella_tensor* dq;
  const tessella_tensor* dk;
  const tessella_tensor* dv;
  const tessella_tensor* d_bias;
  const tessella_tensor* d_sink;
  const tessella_tensor* d_alibi_slopes;
  tessella_gradient accumulate;
} tessella_backward_args;

#define TESSELLA_BACKWARD_ARGS_INIT \
  { sizeof(tessella_backward_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: merge_args, from src/api/arguments.toml */
/* States of attention that become one: (out, lse) of the same queries over disjoint sets of keys, as forward gives
 * them.
 *
 *   outs           num_states tensors, one or more: (batch, seqlen, heads, head_dim), packed (total, heads, head_dim),
 *                  or (seqlen, head_dim)   f64, f32, bf16 or f16, all of one dtype
 *   lses           num_states tensors (batch, heads, seqlen), (heads, total) or (seqlen), an axis less than their outs
 *                  f32 (f64 allowed for f64 outs); natural logarithm
 *   out            shape of the outs, their dtype, or f32   for outs of f32 also bf16 and f16. It may be one of outs,
 *                  the very same view; else it overlaps no input
 *   lse            shape of the lses, f32 (f64 allowed for f64 outs)   NULL = not written. It may be one of lses
 *
 * A state whose lse is -inf has no key and counts for nothing, whatever its out holds; where all have none, out is 0
 * and lse -inf. A single state with keys is copied as it is. +inf or NaN in an lse makes out and lse NaN. */
typedef struct tessella_merge_args {
  size_t struct_size;
  const tessella_tensor* outs;
  const tessella_tensor* lses;
  const tessella_tensor* out;
  const tessella_tensor* lse;
  int32_t num_states;
} tessella_merge_args;

#define TESSELLA_MERGE_ARGS_INIT \
  { sizeof(tessella_merge_args), 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: merge_options, from src/api/arguments.toml */
/* As the options of attention of the same names. */
typedef struct tessella_merge_options {
  size_t struct_size;
  int32_t num_sms;
  int32_t num_threads;
  /* upper bound of seqlen (packed: total) that a plan is made for; 0 = the tensors' size */
  int64_t max_seqlen;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
} tessella_merge_options;

#define TESSELLA_MERGE_OPTIONS_INIT \
  { sizeof(tessella_merge_options), 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: append_args, from src/api/arguments.toml */
/* New rows of keys and values that go into a cache, rotated on their way.
 *
 *   k_new, v_new   (batch, new, heads_kv, head_dim), packed (total, heads_kv, head_dim), f64, f32, bf16 or f16   either
 *                  may be NULL, together with its cache
 *   k, v           the caches, written: (slots, seqlen_kv, heads_kv, head_dim), or with page_table pools (num_pages,
 *                  page_size, heads_kv, head_dim)   the dtype of the new rows, or f8e4m3fn, i8 or i4 beside f32, bf16
 *                  and f16: such a cache is quantised. Both have one dtype
 *   seqlens_kv     (batch) i32   required: valid lengths after the append, left padding included. The new rows of a
 *                  sequence become rows [seqlens_kv - new, seqlens_kv) of it; the attention that follows takes the same
 *                  array
 *   seqlens_new    (batch) i32   so many rows of a sequence are new, its first ones; the others are not read. NULL =
 *                  all
 *   cu_seqlens_new (batch + 1) i32   sequence b is rows [cu[b], cu[b + 1]) of packed k_new, v_new and q; cu[0] = 0
 *   page_table     (batch, pages) i32   row r of a sequence is row r % page_size of page page_table[b, r / page_size].
 *                  Entries of pages without a new row may hold anything
 *   cache_batch_idx   (batch) i32   sequence b has its rows in slot cache_batch_idx[b]; else slot b. Not beside
 *                  page_table
 *   leftpad_kv     (batch) i32   the first rows of a sequence that are padding
 *   rotary_cos, rotary_sin   (positions, rotary_dim / 2), both or none, f32 or the dtype of the new rows   the first
 *                  rotary_dim columns of k_new are rotated by the angles of the row's position (RoFormer, arXiv
 *                  2104.09864), in fp32 (f64 in double) and rounded once; the others, and v_new, are copied
 *   rotary_offsets (batch) i32   the position of the row that goes to row r is r - leftpad_kv + rotary_offsets. NULL =
 *                  0
 *   q, q_out       (batch, new, heads_q, head_dim), packed (total, heads_q, head_dim)   q_out is written with the rows
 *                  of q, rotated by the positions of the new rows. Dtype of the new rows. It may be q, the very same
 *                  view. Both or none
 *   k_scale, v_scale   f32   of quantised caches: a row is its scale times what is stored, as attention reads it. With
 *                  option scale_block 0 all rows of a slot or page have one: the scales are inputs, (slots or
 *                  num_pages, 1, heads_kv), where each axis may be 1 and leading ones may be left out. With scale_block
 *                  1 every row of every head has its own, (slots, seqlen_kv, heads_kv) or (num_pages, page_size,
 *                  heads_kv), and those of the new rows are written. Each is required beside its quantised cache
 *
 * Rows of a quantised cache: x, rotated in fp32 where it is, is stored as x / scale, divided in fp32 and rounded to
 * nearest even; what is beyond the largest number stored, 448 of f8e4m3fn, 127 of i8 and 7 of i4, becomes that number,
 * and so does an infinity. A scale that is computed is the largest |x| of the row divided by that number. Below 2^-90 a
 * scale counts as zero: all that is finite is stored as zero, and one that is computed is 1. A NaN is stored as NaN in
 * f8e4m3fn and as 0 in i8 and i4, which have none; where scales are computed, a row that has a NaN or an infinity has
 * NaN as its scale, so that it is read as NaN. A zero is +0. Bytes and scales are the same on a CPU and on a GPU.
 *
 * Nothing else of the caches and of q_out is touched, whatever it holds. On the CPU a row without a slot in the cache
 * and a position without angles are errors, and so are two sequences that write one row. On a GPU such rows are not
 * written, and positions are clamped; the caller makes sure that no two sequences write one row. */
typedef struct tessella_append_args {
  size_t struct_size;
  const tessella_tensor* k_new;
  const tessella_tensor* v_new;
  const tessella_tensor* k;
  const tessella_tensor* v;
  const tessella_tensor* seqlens_kv;
  const tessella_tensor* seqlens_new;
  const tessella_tensor* cu_seqlens_new;
  const tessella_tensor* page_table;
  const tessella_tensor* cache_batch_idx;
  const tessella_tensor* leftpad_kv;
  const tessella_tensor* rotary_cos;
  const tessella_tensor* rotary_sin;
  const tessella_tensor* rotary_offsets;
  const tessella_tensor* q;
  const tessella_tensor* q_out;
  const tessella_tensor* k_scale;
  const tessella_tensor* v_scale;
} tessella_append_args;

#define TESSELLA_APPEND_ARGS_INIT \
  { sizeof(tessella_append_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: append_options, from src/api/arguments.toml */
/* As the options of attention of the same names. */
typedef struct tessella_append_options {
  size_t struct_size;
  /* 0: columns j and j + rotary_dim / 2 turn together (GPT-NeoX); 1: 2j and 2j + 1 (GPT-J) */
  int32_t rotary_interleaved;
  int32_t num_sms;
  int32_t num_threads;
  int32_t check_device_values;
  /* upper bound of `new` (packed: total) that a plan is made for; 0 = the tensors' size */
  int64_t max_seqlen_new;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
  /* 0: k_scale and v_scale are given; 1: those of the new rows are computed. No other yet */
  int64_t scale_block;
} tessella_append_options;

#define TESSELLA_APPEND_OPTIONS_INIT \
  { sizeof(tessella_append_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: copy_pages_args, from src/api/arguments.toml */
/* Pages that are copied: what a sequence that is forked needs before it writes to a page that it has in common with
 * another.
 *
 *   pools          num_pools tensors (num_pages, page_size, heads, head_dim), all of one dtype, any, and of as many
 *                  pages; the other axes may differ: k and v of every layer
 *   pairs          (n, 2) i32   page pairs[i][0] of each pool is copied to page pairs[i][1] of the same pool. A
 *                  negative source is no copy
 *
 * No target is in another pair. A CPU checks that; on a GPU the caller makes sure of it, and otherwise what the target
 * holds is not defined. A page outside of the pools is an error on the CPU; a GPU skips that pair. */
typedef struct tessella_copy_pages_args {
  size_t struct_size;
  const tessella_tensor* pools;
  int32_t num_pools;
  const tessella_tensor* pairs;
} tessella_copy_pages_args;

#define TESSELLA_COPY_PAGES_ARGS_INIT \
  { sizeof(tessella_copy_pages_args), 0, 0, 0 }
/* end of generated */

/* generated: copy_pages_options, from src/api/arguments.toml */
/* As the options of attention of the same names. */
typedef struct tessella_copy_pages_options {
  size_t struct_size;
  int32_t num_sms;
  int32_t num_threads;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
} tessella_copy_pages_options;

#define TESSELLA_COPY_PAGES_OPTIONS_INIT \
  { sizeof(tessella_copy_pages_options), 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: quantize_args, from src/api/arguments.toml */
/* Rows of q, k or v that become elements of 8 bits beside scales, on their way rotated, smoothed and spread.
 *
 *   x              (batch, seqlen, heads, head_dim), packed (total, heads, head_dim), f32, bf16 or f16
 *   out            as x, f8e4m3fn or f8e5m2   written. With the flag TESSELLA_TRANSPOSED, not packed: (batch, heads,
 *                  head_dim, seqlen rounded up to a multiple of 128), the last axis contiguous, as kernels for Hopper
 *                  take v of 8 bits. Of 16 consecutive rows, place 4t + b holds row 8 (b / 2) + 2t + b % 2, t and b
 *                  below 4; rows from seqlen on are zeros
 *   scale          (batch, ceil(seqlen / scale_block), heads), f32   what elements are multiples of: read with option
 *                  scales_given, where NULL = 1, else required and written. Each axis may be 1 and leading ones may be
 *                  left out, and an entry is then of all rows and heads that share it. Packed tensors have blocks of
 *                  their rows and one batch, or a batch and one block
 *   mean           (batch, 1, heads, head_dim) f32   written: the mean of a sequence's rows, rotated, which is
 *                  subtracted
 *   k_mean         (batch, 1, heads_kv, head_dim) f32   the mean that a call for k has written; heads_kv divides heads.
 *                  Both it and lse_shift or none; not beside mean
 *   lse_shift      (batch, heads, seqlen), packed (heads, total), f32   written: x . k_mean of each row, rotated and
 *                  before H, in fp32: neighbouring columns are added, then neighbouring sums, and so on. Times the
 *                  scale of attention it is to be added to the LSE
 *   cu_seqlens     (batch + 1) i32   sequence b is rows [cu[b], cu[b + 1]) of packed x and out; cu[0] = 0
 *   rotary_cos, rotary_sin   (positions, rotary_dim / 2), both or none, f32 or the dtype of x   the first rotary_dim
 *                  columns of a row are rotated by the angles of its position (RoFormer, arXiv 2104.09864), in fp32
 *   rotary_offsets (batch) i32   the position of row r of a sequence is r + rotary_offsets. NULL = 0
 *
 * An element is (x' H) / scale, divided in fp32 and rounded to nearest even: x' is x, rotated, less its mean, as asked
 * for, and H is the identity or that of option hadamard. What is beyond the largest number of the dtype, 448 of
 * f8e4m3fn and 57344 of f8e5m2, becomes that number, and so does an infinity. A scale that is computed is the largest
 * |x' H| that its entry covers divided by that number; 1 where an entry covers no row. Below 2^-90 a scale counts as
 * zero: all that is finite is stored as zero, and one that is computed is 1. A NaN is stored as NaN; where scales are
 * computed, an entry that covers a NaN or an infinity is NaN. A zero is +0. Elements, scales, means and shifts are the
 * same on a CPU and on a GPU, except magnitudes below 2^-126, which may count as zero.
 *
 * The mean is over the rows of a sequence: sums of 32 rows each, in their order, added in their order, all in fp32; 0
 * of no rows. An infinity makes it infinite, and what is stored NaN. Softmax does not see it: scores of a query move by
 * one number, scale * q . mean, and so does its LSE. A call for q with the means of k writes that number without its
 * factor.
 *
 * Rows of a packed tensor that no sequence has are not read and not written. On the CPU a position without angles is an
 * error; on a GPU positions are clamped. */
typedef struct tessella_quantize_args {
  size_t struct_size;
  const tessella_tensor* x;
  const tessella_tensor* out;
  const tessella_tensor* scale;
  const tessella_tensor* mean;
  const tessella_tensor* k_mean;
  const tessella_tensor* lse_shift;
  const tessella_tensor* cu_seqlens;
  const tessella_tensor* rotary_cos;
  const tessella_tensor* rotary_sin;
  const tessella_tensor* rotary_offsets;
} tessella_quantize_args;

#define TESSELLA_QUANTIZE_ARGS_INIT \
  { sizeof(tessella_quantize_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: quantize_options, from src/api/arguments.toml */
/* Those that attention has too are as there. */
typedef struct tessella_quantize_options {
  size_t struct_size;
  /* rows of an entry of the scales: 1 a row, 0 all of a sequence */
  int64_t scale_block;
  /* scales are read, else computed and written */
  int32_t scales_given;
  /* 1: H is random signs of the columns, then the Walsh-Hadamard matrix of the largest power of two that divides
     head_dim, block by block, divided by the root of its size (QuIP#, arXiv 2402.04396). It is orthogonal and the same
     for all rows: q and k with one seed keep q . k. head_dim is then a multiple of 16 */
  int32_t hadamard;
  /* which signs */
  uint64_t hadamard_seed;
  /* 0: columns j and j + rotary_dim / 2 turn together (GPT-NeoX); 1: 2j and 2j + 1 (GPT-J) */
  int32_t rotary_interleaved;
  int32_t num_sms;
  int32_t num_threads;
  int32_t check_device_values;
  /* upper bound of seqlen (packed: total) that a plan is made for; 0 = the tensors' size */
  int64_t max_seqlen;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
} tessella_quantize_options;

#define TESSELLA_QUANTIZE_OPTIONS_INIT \
  { sizeof(tessella_quantize_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: dequantize_args, from src/api/arguments.toml */
/* Rows that quantize has stored, as numbers again.
 *
 *   x              f8e4m3fn or f8e5m2   what quantize has written as out, with the flag TESSELLA_TRANSPOSED too
 *   out            (batch, seqlen, heads, head_dim), packed (total, heads, head_dim), f32, bf16 or f16   written
 *   scale          (batch, ceil(seqlen / scale_block), heads), f32   as of quantize, read; NULL = 1
 *   mean           (batch, 1, heads, head_dim) f32   the mean that quantize has written, which is added
 *   cu_seqlens     (batch + 1) i32   as of quantize
 *
 * An element is its scale times what is stored, then H undone, then the mean added, in fp32 and rounded once. What
 * quantize has rotated stays rotated. */
typedef struct tessella_dequantize_args {
  size_t struct_size;
  const tessella_tensor* x;
  const tessella_tensor* out;
  const tessella_tensor* scale;
  const tessella_tensor* mean;
  const tessella_tensor* cu_seqlens;
} tessella_dequantize_args;

#define TESSELLA_DEQUANTIZE_ARGS_INIT \
  { sizeof(tessella_dequantize_args), 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: dequantize_options, from src/api/arguments.toml */
/* As the options of quantize of the same names. */
typedef struct tessella_dequantize_options {
  size_t struct_size;
  /* rows of an entry of the scales: 1 a row, 0 all of a sequence */
  int64_t scale_block;
  /* undo the matrix of quantize */
  int32_t hadamard;
  /* which signs */
  uint64_t hadamard_seed;
  int32_t num_sms;
  int32_t num_threads;
  int32_t check_device_values;
  /* upper bound of seqlen (packed: total) that a plan is made for; 0 = the tensors' size */
  int64_t max_seqlen;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
} tessella_dequantize_options;

#define TESSELLA_DEQUANTIZE_OPTIONS_INIT \
  { sizeof(tessella_dequantize_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

typedef int32_t tessella_activation;
enum { TESSELLA_ACTIVATION_NONE = 0, TESSELLA_SWIGLU = 1 };

/* generated: linear_args, from src/api/arguments.toml */
/* A linear layer of few rows: out = f(x w^T + bias) + residual, where f is the identity or that of option activation
 * (FlashDecoding++, arXiv 2311.01282, sections 4 and 5).
 *
 *   x              (rows, in_features), f64, f32, bf16 or f16   in_features contiguous, here and in w
 *   w              (out_features, in_features), the dtype of x, i8 or f8e4m3fn   with swiglu (2 out_features,
 *                  in_features): first all rows of a, then all of b
 *   w_scale        (rows of w) f32   required beside w of i8 or f8e4m3fn: a row of w is its scale times what is stored
 *   bias           (rows of w), the dtype of x, or f32   added before f; NULL = none
 *   residual       (rows, out_features), the dtype of out   added after f; NULL = none. It may be out, the very same
 *                  view
 *   out            (rows, out_features), the dtype of x, or f32   written
 *
 * Products are summed in fp32 (f64 in double) in an order of the kernel, the same in every run except where a BLAS sums
 * them, and out is rounded once. The call is made for few rows, as decoding has: w is read once for each 64 of them, in
 * f32 on GPUs for each 8. */
typedef struct tessella_linear_args {
  size_t struct_size;
  const tessella_tensor* x;
  const tessella_tensor* w;
  const tessella_tensor* w_scale;
  const tessella_tensor* bias;
  const tessella_tensor* residual;
  const tessella_tensor* out;
} tessella_linear_args;

#define TESSELLA_LINEAR_ARGS_INIT \
  { sizeof(tessella_linear_args), 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* generated: linear_options, from src/api/arguments.toml */
/* Those that attention has too are as there. */
typedef struct tessella_linear_options {
  size_t struct_size;
  /* TESSELLA_SWIGLU: silu(a) b, silu(a) = a / (1 + exp(-a)), of the first half a of the sums and their second half b
     (arXiv 2002.05202) */
  int32_t activation;
  /* GPU. 1: no work that is queued before on the stream, and may still run, writes w, w_scale or bias. The kernel may
     then read them before that work has ended (programmatic dependent launch) */
  int32_t weights_ready;
  /* 1: a row's bits do not depend on how many rows the call has, where rows of x start at multiples of 16 bytes or none
     does */
  int32_t batch_invariant;
  int32_t num_sms;
  int32_t num_threads;
  /* upper bound of the rows that a plan is made for; 0 = those of x */
  int64_t max_rows;
  const char* kernel;
  const tessella_allocator* allocator;
  const int32_t* cancel;
} tessella_linear_options;

#define TESSELLA_LINEAR_OPTIONS_INIT \
  { sizeof(tessella_linear_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* end of generated */

/* Arguments and options of any operation: what plans and questions take. */
typedef struct tessella_call {
  size_t struct_size;
  tessella_operation operation;
  const void* args;    /* the operation's args */
  const void* options; /* the operation's options; NULL = the defaults */
} tessella_call;

#define TESSELLA_CALL_INIT \
  { sizeof(tessella_call), 0, 0, 0 }

typedef struct tessella_plan tessella_plan;

/* state: zeroed once by tessella_plan_initialize, left zero by every run. scratch: any content. Both are aligned to
 * 64 bytes; they overlap neither each other nor anything that a run's args point to. One run at a time may use a
 * workspace. A run that begins while the library works with it for another call is an error; on a GPU the library works
 * with it until the other call has queued its work. Runs that follow each other on one stream may have the same
 * workspace. The caller makes sure that no two streams use it at the same time. */
typedef struct tessella_workspace {
  void* state;
  size_t state_bytes;
  void* scratch;
  size_t scratch_bytes;
} tessella_workspace;

/* Attention forward: out = softmax(scores) . v (FlashAttention-2, arXiv 2307.08691, algorithm 1).
 * stream: CUDA stream for tensors on a GPU (NULL = the default one), where the call returns when the work is queued;
 * ignored on the CPU, where it returns when out is written. The first call of its kind may compile; make it before a
 * graph capture. */
TESSELLA_API tessella_status tessella_forward(const tessella_forward_args* args,
                                              const tessella_attention_options* options, void* stream);

/* Gradients of attention by recomputation of the scores (FlashAttention-2, arXiv 2307.08691, algorithm 2), in linear
 * memory. stream and errors as of tessella_forward. The same bits in every run and for any number of threads. */
TESSELLA_API tessella_status tessella_backward(const tessella_backward_args* args,
                                               const tessella_attention_options* options, void* stream);

/* Merges states of attention over disjoint sets of keys (FlashInfer, arXiv 2501.01005, section 2.2; the reduction of
 * Flash-Decoding): LSE = log sum_i exp(lse_i), out = sum_i exp(lse_i - LSE) out_i, in fp32 and rounded once.
 * stream: as for forward. */
TESSELLA_API tessella_status tessella_merge(const tessella_merge_args* args, const tessella_merge_options* options,
                                            void* stream);

/* Writes new keys and values into a cache, with rotary embeddings. stream: as for forward. */
TESSELLA_API tessella_status tessella_append(const tessella_append_args* args, const tessella_append_options* options,
                                             void* stream);

/* Copies pages within pools. stream: as for forward. */
TESSELLA_API tessella_status tessella_copy_pages(const tessella_copy_pages_args* args,
                                                 const tessella_copy_pages_options* options, void* stream);

/* Quantises rows of q, k or v, and makes numbers of them again. stream: as for forward. */
TESSELLA_API tessella_status tessella_quantize(const tessella_quantize_args* args,
                                               const tessella_quantize_options* options, void* stream);
TESSELLA_API tessella_status tessella_dequantize(const tessella_dequantize_args* args,
                                                 const tessella_dequantize_options* options, void* stream);

/* Multiplies rows with a matrix of weights. stream: as for forward. */
TESSELLA_API tessella_status tessella_linear(const tessella_linear_args* args, const tessella_linear_options* options,
                                             void* stream);

/* Chooses and prepares a kernel for calls like this one: same operation, dtypes, batch, heads, head dims, device and
 * features, lengths up to these (or max_seqlen_q/kv where larger). The plan keeps no pointer of the args; no memory of
 * q, k, v, out and lse is read here and in questions about a kernel, and data may be NULL beside a device_type (a
 * v of one head, with the strides of k and fewer columns, then counts as the first columns of k). A plan of merge is
 * made for its number of states, and for a seqlen up to this one (or max_seqlen where larger). One of append is made
 * for a batch and new rows up to these (or max_seqlen_new where larger), one of copy_pages for its number of pools and
 * for pairs up to these, one of quantize or dequantize for its batch and for a seqlen up to this one (or max_seqlen
 * where larger), one of linear for rows up to these (or max_rows where larger). */
TESSELLA_API tessella_status tessella_plan_make(const tessella_call* call, tessella_plan** plan);
TESSELLA_API void tessella_plan_free(tessella_plan* plan);
/* Runs it: no compile, no allocation where a workspace is given. options carry scale, window widths, softcap, seed. */
TESSELLA_API tessella_status tessella_plan_run(const tessella_plan* plan, const tessella_call* call,
                                               const tessella_workspace* workspace, void* stream);
TESSELLA_API tessella_status tessella_plan_initialize(const tessella_plan* plan, const tessella_workspace* workspace,
                                                      void* stream);
TESSELLA_API tessella_status tessella_plan_workspace(const tessella_plan* plan, size_t* state_bytes,
                                                     size_t* scratch_bytes);
/* Bytes of the schedule, or of the map of a mask, that runs of the plan read: 0 where it was made without one
 * (args.schedule or args.mask_map, whose size is not read then, and whose data may be NULL beside a device_type). */
TESSELLA_API tessella_status tessella_plan_schedule_size(const tessella_plan* plan, size_t* bytes);
/* The same for one call. */
TESSELLA_API tessella_status tessella_plan_schedule_size_for(const tessella_plan* plan, const tessella_call* call,
                                                             size_t* bytes);
/* Queues the making of args.schedule from the call's lengths as they are on the GPU then: once a model step, for the
 * runs of every layer whose lengths and window are these. It may be captured in a graph. Nothing of q, k, v, out and
 * lse is touched, and their data may be NULL beside a device_type. Lengths may have changed when it is followed:
 * results are right, and the work is less even. Plain calls, and plans of the same GPU, with the same batch, heads,
 * head dims, dtypes, seqlen_q and packed or dense q, may follow it too. */
TESSELLA_API tessella_status tessella_plan_schedule(const tessella_plan* plan, const tessella_call* call, void* stream);
/* Bytes of args.mask_map that the call reads; the map has no copies for axes over which the mask broadcasts. */
TESSELLA_API tessella_status tessella_plan_mask_map_size(const tessella_plan* plan, const tessella_call* call,
                                                         size_t* bytes);
/* Queues the making of args.mask_map from masks and lengths as they are on the GPU then. As tessella_plan_schedule it
 * may be captured, and touches nothing else. The map serves calls with the same masks, batch, lengths and window, of
 * any head dim and dtype, backward too; of any heads_q where no mask has a head axis. */
TESSELLA_API tessella_status tessella_plan_mask_map(const tessella_plan* plan, const tessella_call* call, void* stream);
/* The strings live as long as the plan. */
TESSELLA_API const char* tessella_plan_kernel(const tessella_plan* plan);
TESSELLA_API const char* tessella_plan_explain(const tessella_plan* plan);

/* Compares sampled rows of a call's out, and of its lse where given, with the float64 reference, on the CPU. Tensors
 * on a GPU are copied, when all its streams are done; pools of pages whole. out and lse may be read-only. Gradients are
 * compared by whole KV heads, until they have as many queries as rows are asked for; what is given as out and lse then
 * changes neither what is right nor the tolerance. A merge in place leaves nothing to
 * compare, nor does an append with q_out in place of q or a backward that accumulates. A NaN of out or lse is right
 * where the reference has one, and where a NaN or infinity of a key that some query sees may reach (docs/numerics.md);
 * one of a gradient only where the reference has it. */
typedef struct tessella_check_report {
  size_t struct_size;
  int64_t rows;           /* rows compared */
  double max_error;       /* largest |out - reference| */
  double plain_error;     /* the same of a plain computation: S and softmax in fp32, P rounded to the input dtype */
  double tolerance;       /* what max_error was held against */
  int32_t passed;         /* 1 if NaN and inf stand where they may and max_error <= tolerance */
  int64_t worst_index[4]; /* batch, row, head, dim of the worst element; dim -1: of lse, -2: of amax */
  double worst_got;
  double worst_expected;
  const char* worst_tensor; /* "out", "lse", "dq", ...: the one whose numbers these are */
} tessella_check_report;
#define TESSELLA_CHECK_REPORT_INIT \
  { sizeof(tessella_check_report), 0, 0, 0, 0, 0, {0, 0, 0, 0}, 0, 0, 0 }
TESSELLA_API tessella_status tessella_check(const tessella_call* call, int64_t num_rows, uint64_t seed,
                                            tessella_check_report* report);

/* The kernels of this library, best first within an operation and a device. */
typedef struct tessella_kernel_info {
  size_t struct_size;
  const char* name;
  const char* operation; /* "forward", "backward", "merge", "append", "copy_pages" */
  const char* summary;
  const char* device;        /* "cpu" or "cuda" */
  const char* architectures; /* what it is made for: "sm_90a", "sm_80+" (that and later), "avx2", "any" */
  const char* dtypes;        /* "bf16 f16 f32" */
  const char* automatic;     /* dtypes for which it may be chosen unnamed: "f64"; "" = it runs only when named */
  const char* features;      /* "causal/window chunk ..." */
  int64_t max_head_dim;
  const char* unavailable; /* why this machine cannot run it, or "" */
} tessella_kernel_info;
#define TESSELLA_KERNEL_INFO_INIT \
  { sizeof(tessella_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
TESSELLA_API int32_t tessella_kernel_count(void);
TESSELLA_API tessella_status tessella_kernel_describe(int32_t kernel_idx, tessella_kernel_info* info);
/* *reason is "" if the kernel would run this call, else why not; it lives until the thread's next call. */
TESSELLA_API tessella_status tessella_kernel_refusal(int32_t kernel_idx, const tessella_call* call,
                                                     const char** reason);

/* What an algorithm of the family does for this call, by its own count of its loops (docs/kernels/ladder.md). */
typedef struct tessella_kernel_cost {
  size_t struct_size;
  double score_passes; /* times every score is produced or read */
  double bytes_moved;  /* between memory and the tile that is worked on */
  double extra_bytes;  /* memory beyond inputs and outputs */
} tessella_kernel_cost;
#define TESSELLA_KERNEL_COST_INIT \
  { sizeof(tessella_kernel_cost), 0, 0, 0 }
TESSELLA_API tessella_status tessella_kernel_cost_of(int32_t kernel_idx, const tessella_call* call,
                                                     tessella_kernel_cost* cost);

/* Compiles the GPU kernels that are most used into the cache folder ($TESSELLA_CACHE_DIR, else
 * $XDG_CACHE_HOME/tessella, else ~/.cache/tessella), so that no call waits for the compiler. Needs NVRTC and no GPU.
 * archs: "sm_80,sm_90"; NULL or "" = those of this machine's GPUs, without any all that the library is made for.
 * kernel: a name that tessella_kernel_describe gives; NULL or "" = all.
 * progress: called by the calling thread after each kernel, with one line about it; NULL = not. Frozen. */
typedef void (*tessella_progress)(int32_t num_done, int32_t num_total, const char* message, void* user);
TESSELLA_API tessella_status tessella_kernels_build(const char* archs, const char* kernel, tessella_progress progress,
                                                    void* user);

/* A linear layer whose kernels are measured. */
typedef struct tessella_tune_options {
  size_t struct_size;
  tessella_device_type device_type; /* default: the CPU */
  int32_t device_id;
  tessella_dtype dtype;   /* of x: f32, bf16 or f16; default bf16 */
  tessella_dtype w_dtype; /* default: that of x */
  tessella_activation activation;
  int64_t in_features;
  int64_t out_features;
  int32_t num_threads;   /* CPU; 0 = all that the process may use */
  const int32_t* cancel; /* as of tessella_attention_options: nothing is kept then */
} tessella_tune_options;
#define TESSELLA_TUNE_OPTIONS_INIT \
  { sizeof(tessella_tune_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Measures on this machine which kernel is the fastest for such a layer, for 1 to 128 rows, and keeps the result in the
 * cache folder, where calls of tessella_linear look it up from then on (FlashDecoding++, arXiv 2311.01282, section 5).
 * It takes some seconds, and half a gigabyte of the device's memory or twice the weights: copies of the weights take
 * turns, so that caches do not hold them. progress: called after each number of rows, with one line of times; NULL =
 * not. */
TESSELLA_API tessella_status tessella_tune(const tessella_tune_options* options, tessella_progress progress,
                                           void* user);

/* The pages of a cache and the sequences that hold them. It knows no memory: one object serves the pools of k and v of
 * every layer that have num_pages pages of page_size rows. A sequence has a length, its valid rows and those it will
 * write next, and as many pages as these need. Sequences of one fork hold the same pages; copy on write keeps them
 * apart.
 *
 * Several threads may use one object at the same time. Only tessella_pages_free may not run beside another call. A call
 * that fails changes nothing. ids: num_ids sequences, each once; only lengths and tables take one twice. */
typedef struct tessella_pages tessella_pages;
/* 1 to 2^31 - 1 each. */
TESSELLA_API tessella_status tessella_pages_make(int64_t num_pages, int64_t page_size, tessella_pages** pages);
TESSELLA_API void tessella_pages_free(tessella_pages* pages);
/* A sequence of length 0. Ids count from 0; one that is released is never given again. */
TESSELLA_API tessella_status tessella_pages_new_sequence(tessella_pages* pages, int64_t* id);
/* A sequence with the rows of another one, all of its length: rows reserved and not yet written are truncated before.
 */
TESSELLA_API tessella_status tessella_pages_fork(tessella_pages* pages, int64_t id, int64_t* child);
/* Ends the sequences. Pages that no other sequence holds are free. */
TESSELLA_API tessella_status tessella_pages_release(tessella_pages* pages, const int64_t* ids, int64_t num_ids);
/* Page `source` is to be copied to page `target`, in every pool: what tessella_copy_pages does. Frozen. */
typedef struct tessella_page_copy {
  int32_t source;
  int32_t target;
} tessella_page_copy;
/* Sets the lengths of the sequences, none less than before, and takes pages for them. Rows from the old length on
 * are what will be written. A page with such a row that another sequence holds too is replaced by a fresh one:
 * *num_copies copies, to be made before anything else is written to the pools. At most one a sequence, so copies has
 * room for num_ids. No page is source of one and target of another, so they may be made in any order.
 * TESSELLA_OUT_OF_MEMORY: there are not enough free pages. */
TESSELLA_API tessella_status tessella_pages_reserve(tessella_pages* pages, const int64_t* ids, const int64_t* lengths,
                                                    int64_t num_ids, tessella_page_copy* copies, int64_t* num_copies);
/* Sets the lengths of the sequences, none more than before. Pages without a row are free. A length below the
 * end of a sequence's evicted pages is an error: rows before it are gone. */
TESSELLA_API tessella_status tessella_pages_truncate(tessella_pages* pages, const int64_t* ids, const int64_t* lengths,
                                                     int64_t num_ids);
/* Drops rows that no query will see again, behind a sliding window for example: of sequence ids[i] the pages all of
 * whose rows are in [keep_first, before[i]). They are free unless another sequence holds them, and the page table has
 * -1 in their place. Lengths stay, and sequences may grow. Rows count from 0, left padding too. before[i]: at most the
 * length; one below page_size drops nothing, and may be negative. keep_first: that of the mask, and the left
 * padding before it, at least 0. */
TESSELLA_API tessella_status tessella_pages_evict(tessella_pages* pages, const int64_t* ids, const int64_t* before,
                                                  int64_t num_ids, int64_t keep_first);
TESSELLA_API tessella_status tessella_pages_lengths(const tessella_pages* pages, const int64_t* ids, int64_t num_ids,
                                                    int64_t* lengths);
/* Writes num_ids rows of page_table, of num_columns each and row_stride apart, with -1 for evicted pages and after a
 * sequence's pages. There are columns for all of ceil(length / page_size) pages of each. */
TESSELLA_API tessella_status tessella_pages_table(const tessella_pages* pages, const int64_t* ids, int64_t num_ids,
                                                  int32_t* table, int64_t num_columns, int64_t row_stride);
TESSELLA_API tessella_status tessella_pages_num_free(const tessella_pages* pages, int64_t* num_free);

/* DLPack (versioned or not, `versioned` says which) to a view and back, without a copy. The view lives as long as the
 * managed tensor; reading never deletes it. A read-only one has TESSELLA_READ_ONLY set; the unversioned form cannot say
 * so and to_dlpack returns an error. Pinned memory counts as the CPU's, managed memory as the GPU's. To DLPack:
 * *managed owns itself, freed by its deleter, and not the memory. */
TESSELLA_API tessella_status tessella_from_dlpack(const void* managed, int32_t versioned, tessella_tensor* tensor);
TESSELLA_API tessella_status tessella_to_dlpack(const tessella_tensor* tensor, int32_t versioned, void** managed);

TESSELLA_API int32_t tessella_version(void);
/* Message of the calling thread's last failure; lives until its next call into the library. */
TESSELLA_API const char* tessella_last_error(void);
/* Machine, instruction sets, threads and devices as lines "name: value"; lives until the thread's next call. */
TESSELLA_API const char* tessella_info(void);

#ifdef __cplusplus
}
#endif

#endif /* TESSELLA_TESSELLA_H */
