// Any bytes as the structs of a call. Tensors claim only memory that they have; everything else may be nonsense: the
// library must return an error with a message or compute, and never crash, read or write outside.
//
// The memory of every tensor ends where a poisoned zone begins, so the address sanitizer sees one byte too far.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tessella/tessella.h"

namespace {

// Takes values from the front of the input; past its end everything is zero.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  template <typename T>
  T value() {
    T result{};
    uint8_t raw[sizeof(T)];
    for (uint8_t& b : raw) b = byte();
    std::memcpy(&result, raw, sizeof(T));
    return result;
  }
  // Mostly small numbers, sometimes any: both sides of every bound.
  int64_t number() {
    const uint8_t kind = byte();
    if (kind < 200) return kind % 12;
    if (kind < 220) return -static_cast<int64_t>(byte() % 4) - 1;
    if (kind < 240) return value<int16_t>();
    return value<int64_t>();
  }
  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case TESSELLA_F64:
    case TESSELLA_I64: return 8;
    case TESSELLA_F32:
    case TESSELLA_I32: return 4;
    case TESSELLA_BF16:
    case TESSELLA_F16: return 2;
    default: return 1;  // i4 too: half of its memory is spare
  }
}

constexpr int64_t kMaxBytes = 1 << 16;  // per tensor: a case takes milliseconds

// A tensor whose memory reaches exactly as far as its shape and strides claim, or nullptr where they claim too much:
// then the library must report them without following them, so the pointer is null and the claim stays.
struct OwnedTensor {
  tessella_tensor tensor{};
  std::unique_ptr<uint8_t[]> memory;
};

void give_memory(Bytes& bytes, OwnedTensor& owned) {
  tessella_tensor& t = owned.tensor;
  if (t.ndim < 0 || t.ndim > 8) return;
  const int64_t size = element_bytes(t.dtype);
  // In 128 bits nothing overflows; negative axes and strides are left to the library to report.
  __extension__ __int128 reach = 1, elements = 1;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] < 0 || t.strides[axis] < 0) return;
    elements *= t.shape[axis];
    if (elements > kMaxBytes) return;
    if (t.shape[axis] > 0) reach += static_cast<decltype(reach)>(t.shape[axis] - 1) * t.strides[axis];
    if (reach > kMaxBytes) return;
  }
  const auto num_bytes = static_cast<size_t>((elements == 0 ? 0 : reach) * size);
  owned.memory = std::make_unique<uint8_t[]>(num_bytes);
  for (size_t i = 0; i < num_bytes && !bytes.empty(); ++i) owned.memory[i] = bytes.byte();
  t.data = owned.memory.get();
}

// `usual` is the shape that fits the call; one byte decides how far the tensor departs from it.
void make_tensor(Bytes& bytes, OwnedTensor& owned, std::initializer_list<int64_t> usual, int32_t dtype) {
  tessella_tensor& t = owned.tensor;
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(usual.size());
  std::copy(usual.begin(), usual.end(), t.shape);
  const uint8_t odd = bytes.byte();
  if (odd & 1) t.shape[odd / 8 % 8] = bytes.number();
  int64_t stride = 1;
  for (int axis = t.ndim - 1; axis >= 0; --axis) {
    t.strides[axis] = stride;
    stride *= std::clamp<int64_t>(t.shape[axis], 1, 64);
  }
  if (odd & 2) t.strides[odd / 8 % 4] = bytes.number();
  if ((odd & 0xc4) == 4) t.dtype = bytes.byte() % 15;
  if ((odd & 0xf8) == 0xf8) {
    t.ndim = static_cast<int32_t>(bytes.number());
    t.device_type = bytes.byte() % 4;
    t.flags = bytes.byte() % 4;
    t.reserved[0] = bytes.byte() % 2;
  }
  give_memory(bytes, owned);
}

void expect_sane(tessella_status status) {
  if (status >= TESSELLA_OK && status != TESSELLA_INTERNAL && status <= TESSELLA_CANCELLED &&
      (status == TESSELLA_OK || *tessella_last_error())) {
    return;
  }
  std::fprintf(stderr, "status %d: %s\n", status, tessella_last_error());
  std::abort();
}

void call(Bytes& bytes) {
  static constexpr int32_t kDtypes[] = {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16, TESSELLA_F64};
  const int32_t dtype = kDtypes[bytes.byte() % 4];
  const int64_t batch = bytes.byte() % 4, seqlen_q = bytes.byte() % 40, seqlen_kv = bytes.byte() % 70;
  const int64_t heads_kv = bytes.byte() % 3 + 1, heads_q = heads_kv * (bytes.byte() % 3 + 1);
  const int64_t dim_qk = bytes.byte() % 40 + 1, dim_v = bytes.byte() % 40 + 1;
  const auto present = bytes.value<uint32_t>();

  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  std::vector<OwnedTensor> owned(48);
  size_t used = 0;
  const auto put = [&](const tessella_tensor*& field, std::initializer_list<int64_t> shape, int32_t type) {
    make_tensor(bytes, owned[used], shape, type);
    field = &owned[used++].tensor;
  };
  const auto maybe = [&](int bit, const tessella_tensor*& field, std::initializer_list<int64_t> shape, int32_t type) {
    if (present >> bit & 1) put(field, shape, type);
  };
  // Half of the calls are packed: rows of all sequences in one axis.
  const bool packed = present & 1;
  if (packed) {
    put(args.q, {seqlen_q, heads_q, dim_qk}, dtype);
    put(args.k, {seqlen_kv, heads_kv, dim_qk}, dtype);
    put(args.v, {seqlen_kv, heads_kv, dim_v}, dtype);
    put(args.out, {seqlen_q, heads_q, dim_v}, dtype);
    put(args.cu_seqlens_q, {batch + 1}, TESSELLA_I32);
    put(args.cu_seqlens_kv, {batch + 1}, TESSELLA_I32);
    maybe(1, args.lse, {heads_q, seqlen_q}, TESSELLA_F32);
  } else {
    put(args.q, {batch, seqlen_q, heads_q, dim_qk}, dtype);
    put(args.k, {batch, seqlen_kv, heads_kv, dim_qk}, dtype);
    put(args.v, {batch, seqlen_kv, heads_kv, dim_v}, dtype);
    put(args.out, {batch, seqlen_q, heads_q, dim_v}, dtype);
    maybe(1, args.lse, {batch, heads_q, seqlen_q}, TESSELLA_F32);
    maybe(2, args.leftpad_kv, {batch}, TESSELLA_I32);
  }
  maybe(16, args.page_table, {batch, 2}, TESSELLA_I32);
  maybe(3, args.seqlens_q, {batch}, TESSELLA_I32);
  maybe(4, args.seqlens_kv, {batch}, TESSELLA_I32);
  maybe(5, args.bias, {heads_q, seqlen_q, seqlen_kv}, TESSELLA_F32);
  maybe(6, args.alibi_slopes, {heads_q}, TESSELLA_F32);
  maybe(7, args.sink, {heads_q}, TESSELLA_F32);
  maybe(8, args.dense_mask, {seqlen_q, seqlen_kv}, TESSELLA_BOOL);
  const int64_t block_q = bytes.number(), block_kv = bytes.number();
  maybe(9, args.block_map, {(seqlen_q + 7) / 8, (seqlen_kv + 7) / 8}, TESSELLA_BOOL);
  if (present >> 10 & 1) {
    if (packed) {
      put(args.document_ids_q, {seqlen_q}, TESSELLA_I32);
      put(args.document_ids_kv, {seqlen_kv}, TESSELLA_I32);
    } else {
      put(args.document_ids_q, {batch, seqlen_q}, TESSELLA_I32);
      put(args.document_ids_kv, {batch, seqlen_kv}, TESSELLA_I32);
    }
  }
  maybe(11, args.prefix_lengths, {batch}, TESSELLA_I32);
  maybe(12, args.seed, {1}, TESSELLA_I64);
  const int64_t scale_block = present >> 17 & 1 ? bytes.number() : 0;
  const int64_t blocks_q = scale_block > 0 ? (seqlen_q + scale_block - 1) / scale_block : 1;
  const int64_t blocks_kv = scale_block > 0 ? (seqlen_kv + scale_block - 1) / scale_block : 1;
  maybe(18, args.q_scale, {batch, blocks_q, heads_q}, TESSELLA_F32);
  maybe(19, args.k_scale, {batch, blocks_kv, heads_kv}, TESSELLA_F32);
  maybe(20, args.v_scale, {heads_kv}, TESSELLA_F32);
  maybe(21, args.out_scale, {1}, TESSELLA_F32);
  maybe(22, args.amax, {blocks_q, 1}, TESSELLA_F32);
  if ((present >> 23 & 15) == 15) put(args.key_ranges, {1, 1, seqlen_q, 1, 2}, TESSELLA_I32);

  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  if (present >> 13 & 1) {
    options.scale = bytes.value<float>();
    options.softcap = bytes.value<float>();
    options.dropout = bytes.byte() / 200.0f;
    options.causal_top_left = bytes.byte() % 3 - 1;
    options.out_dtype = bytes.byte() % 15 - 1;
    options.deterministic = bytes.byte() % 5 - 1;
    options.batch_invariant = bytes.byte() % 3;
    options.query_class = bytes.byte() % 5 - 1;
    options.first_query = bytes.byte() % 8 == 0 ? bytes.number() : 0;
    options.num_splits = static_cast<int32_t>(bytes.number());
    options.num_sms = static_cast<int32_t>(bytes.number());
    options.max_seqlen_q = bytes.number();
    options.max_seqlen_kv = bytes.number();
  }
  if (present >> 14 & 1) {
    options.window_left = bytes.number();
    options.window_right = bytes.number();
    options.chunk = bytes.number();
    options.keep_first = bytes.number();
  }
  options.block_map_q = present >> 9 & 1 && block_q < 4 ? 8 : block_q;
  options.block_map_kv = present >> 9 & 1 && block_kv < 4 ? 8 : block_kv;
  options.scale_block = scale_block;
  const int32_t flag = bytes.byte() == 0;
  options.cancel = &flag;
  options.num_threads = bytes.byte() % 3;
  // A name of the table, none, or one that is nobody's; a forced kernel runs or says why not.
  tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
  const uint8_t kernel = bytes.byte();
  if (kernel < 128 && tessella_kernel_describe(kernel % tessella_kernel_count(), &info) == TESSELLA_OK) {
    options.kernel = info.name;
  } else if (kernel == 255) {
    options.kernel = "nobody";
  }

  // Sizes of other versions: shorter means defaults, longer reads zeros behind the struct.
  struct {
    tessella_attention_options options;
    uint8_t behind[64];
  } sized{options, {}};
  if (present >> 15 & 1) {
    sized.options.struct_size = bytes.byte() % 3 == 0 ? bytes.byte() % sizeof(sized) : sizeof(sized);
    sized.behind[bytes.byte() % 64] = bytes.byte() % 2;
  }

  expect_sane(tessella_forward(&args, &sized.options, nullptr));

  // Gradients, whose lse and out hold what the forward left, or any bytes.
  tessella_backward_args backward = TESSELLA_BACKWARD_ARGS_INIT;
  const auto wanted = bytes.value<uint16_t>();
  const auto gradient = [&](int bit, const tessella_tensor*& field, const tessella_tensor* of) {
    if (of == nullptr || (wanted >> bit & 1) == 0) return;
    OwnedTensor& made = owned[used++];
    made.tensor = *of;
    made.tensor.data = nullptr;
    if (bytes.byte() % 16 == 0) made.tensor.dtype = bytes.byte() % 15;
    if (bytes.byte() % 16 == 0) made.tensor.shape[bytes.byte() % 8] = bytes.number();
    if (bytes.byte() % 16 == 0) made.tensor.strides[bytes.byte() % 8] = bytes.number();
    give_memory(bytes, made);
    field = &made.tensor;
  };
  backward.forward = &args;
  gradient(0, backward.d_out, args.out);
  gradient(1, backward.d_lse, args.lse);
  gradient(2, backward.dq, args.q);
  gradient(3, backward.dk, args.k);
  gradient(4, backward.dv, args.v);
  gradient(5, backward.d_bias, args.bias);
  gradient(6, backward.d_sink, args.sink);
  gradient(7, backward.d_alibi_slopes, args.alibi_slopes);
  if (wanted >> 8 & 1) backward.accumulate = bytes.byte() % 80 - 8;
  if (wanted >> 9 & 1) sized.options.kernel = nullptr;
  expect_sane(tessella_backward(&backward, &sized.options, nullptr));

  // k and v as new rows, into caches like them, by the call's lengths and pages; q turned by what was its bias.
  tessella_append_args append = TESSELLA_APPEND_ARGS_INIT;
  tessella_append_options append_options = TESSELLA_APPEND_OPTIONS_INIT;
  append.k_new = args.k;
  append.v_new = args.v;
  gradient(10, append.k, args.k);
  gradient(11, append.v, args.v);
  gradient(12, append.q_out, args.q);
  append.q = args.q;
  append.seqlens_kv = args.seqlens_kv;
  append.seqlens_new = args.seqlens_q;
  append.cu_seqlens_new = args.cu_seqlens_kv;
  append.page_table = args.page_table;
  append.leftpad_kv = args.leftpad_kv;
  if (wanted >> 13 & 1) append.rotary_cos = append.rotary_sin = args.bias;
  if (wanted >> 14 & 1) append_options.rotary_interleaved = bytes.byte() % 3;
  expect_sane(tessella_append(&append, &append_options, nullptr));

  // Pages of the caches, by any pairs.
  tessella_copy_pages_args copy_pages = TESSELLA_COPY_PAGES_ARGS_INIT;
  tessella_tensor pools[2] = {};
  for (const tessella_tensor* cache : {append.k, append.v}) {
    if (cache != nullptr) pools[copy_pages.num_pools++] = *cache;
  }
  copy_pages.pools = pools;
  copy_pages.pairs = args.page_table;
  expect_sane(tessella_copy_pages(&copy_pages, nullptr, nullptr));

  // q, turned by what was its bias, into what was to be its gradient, and k or its like back.
  tessella_quantize_args quantize = TESSELLA_QUANTIZE_ARGS_INIT;
  tessella_quantize_options quantize_options = TESSELLA_QUANTIZE_OPTIONS_INIT;
  quantize.x = args.q;
  quantize.out = append.q_out;
  quantize.scale = args.q_scale;
  quantize.cu_seqlens = args.cu_seqlens_q;
  quantize.rotary_cos = append.rotary_cos;
  quantize.rotary_sin = append.rotary_sin;
  quantize.mean = args.lse;
  quantize_options.scale_block = bytes.byte() % 4;
  quantize_options.scales_given = bytes.byte() % 3;
  quantize_options.hadamard = bytes.byte() % 3;
  expect_sane(tessella_quantize(&quantize, &quantize_options, nullptr));
  tessella_dequantize_args dequantize = TESSELLA_DEQUANTIZE_ARGS_INIT;
  dequantize.x = args.k;
  dequantize.out = append.k;
  dequantize.scale = args.k_scale;
  dequantize.cu_seqlens = args.cu_seqlens_kv;
  expect_sane(tessella_dequantize(&dequantize, nullptr, nullptr));

  tessella_plan* plan = nullptr;
  const int32_t operation = bytes.byte() % 8 == 0 ? bytes.byte() % 10 - 1 : TESSELLA_FORWARD;
  const tessella_merge_args no_states = TESSELLA_MERGE_ARGS_INIT;
  const tessella_linear_args no_rows = TESSELLA_LINEAR_ARGS_INIT;
  tessella_call tagged{sizeof tagged, operation, &args, &sized.options};
  switch (operation) {
    case TESSELLA_BACKWARD: tagged.args = &backward; break;
    case TESSELLA_MERGE: tagged.args = &no_states, tagged.options = nullptr; break;
    case TESSELLA_APPEND: tagged.args = &append, tagged.options = &append_options; break;
    case TESSELLA_COPY_PAGES: tagged.args = &copy_pages, tagged.options = nullptr; break;
    case TESSELLA_QUANTIZE: tagged.args = &quantize, tagged.options = &quantize_options; break;
    case TESSELLA_DEQUANTIZE: tagged.args = &dequantize, tagged.options = nullptr; break;
    case TESSELLA_LINEAR: tagged.args = &no_rows, tagged.options = nullptr; break;
    default: break;
  }
  if (tessella_plan_make(&tagged, &plan) == TESSELLA_OK) tessella_plan_free(plan);
  const char* reason = nullptr;
  tessella_kernel_refusal(kernel % tessella_kernel_count(), &tagged, &reason);
}

// Rows times weights: the call, a check of what it left, and a plan.
void call_linear(Bytes& bytes) {
  static constexpr int32_t kDtypes[] = {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16, TESSELLA_F64};
  const int32_t dtype = kDtypes[bytes.byte() % 4];
  const int32_t of_weights[] = {dtype, dtype, TESSELLA_I8, TESSELLA_F8E4M3FN};
  const int32_t stored = of_weights[bytes.byte() % 4];
  const int64_t rows = bytes.byte() % 70, in_features = bytes.byte() % 100 + 1, out_features = bytes.byte() % 40 + 1;
  const uint8_t present = bytes.byte();
  const bool is_swiglu = present & 1;
  const int64_t w_rows = is_swiglu ? 2 * out_features : out_features;

  tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
  std::vector<OwnedTensor> owned(6);
  size_t used = 0;
  const auto put = [&](const tessella_tensor*& field, std::initializer_list<int64_t> shape, int32_t type) {
    make_tensor(bytes, owned[used], shape, type);
    field = &owned[used++].tensor;
  };
  put(args.x, {rows, in_features}, dtype);
  put(args.w, {w_rows, in_features}, stored);
  put(args.out, {rows, out_features}, dtype);
  if ((stored != dtype) != (bytes.byte() == 255)) put(args.w_scale, {w_rows}, TESSELLA_F32);
  if (present >> 1 & 1) put(args.bias, {w_rows}, present >> 2 & 1 ? TESSELLA_F32 : dtype);
  if (present >> 3 & 1) put(args.residual, {rows, out_features}, dtype);
  if (present >> 4 & 1) args.residual = args.out;

  tessella_linear_options options = TESSELLA_LINEAR_OPTIONS_INIT;
  options.activation = is_swiglu ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
  options.num_threads = bytes.byte() % 3;
  if (present >> 5 & 1) {
    options.activation = bytes.byte() % 3;
    options.weights_ready = bytes.byte() % 3;
    options.batch_invariant = bytes.byte() % 3;
    options.num_sms = static_cast<int32_t>(bytes.number());
    options.max_rows = bytes.number();
  }
  if (present >> 6 & 1) options.struct_size = bytes.byte() % (sizeof options + 1);
  tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
  const uint8_t kernel = bytes.byte();
  if (kernel >= 128 && tessella_kernel_describe(kernel % tessella_kernel_count(), &info) == TESSELLA_OK) {
    options.kernel = info.name;
  }

  expect_sane(tessella_linear(&args, &options, nullptr));
  const tessella_call tagged{sizeof tagged, TESSELLA_LINEAR, &args, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  expect_sane(tessella_check(&tagged, bytes.byte() % 4, 0, &report));
  tessella_plan* plan = nullptr;
  expect_sane(tessella_plan_make(&tagged, &plan));
  tessella_plan_free(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  if (bytes.byte() % 4 == 3) {  // not behind the other: tensors take all the bytes there are
    call_linear(bytes);
  } else {
    call(bytes);
  }
  return 0;
}
