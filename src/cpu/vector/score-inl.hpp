// What happens to a tile of scores [key][row] between the two products besides softmax: the score chain (scale,
// softcap, bias, ALiBi, masks), the band, dropout. All of it vertical: one lane a row.
#if defined(TESSELLA_CPU_VECTOR_SCORE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSELLA_CPU_VECTOR_SCORE_INL_HPP
#undef TESSELLA_CPU_VECTOR_SCORE_INL_HPP
#else
#define TESSELLA_CPU_VECTOR_SCORE_INL_HPP
#endif

#include "cpu/exp2.hpp"
#include "cpu/strip.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"
#include "portable/dropout.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr int kChainKeys = 64;  // keys that the score chain treats at a time

// Polynomial near 0 (Cephes tanhf), 1 - 2 / (e^(2|x|) + 1) beyond; error about 1 unit in the last place.
HWY_INLINE VecF tanh(VecF x) {
  const F32 d;
  const VecF one = hn::Set(d, 1.0f);
  const VecF magnitude = hn::Abs(x);
  const VecF square = hn::Mul(x, x);
  VecF near = hn::MulAdd(square, hn::Set(d, -5.70498872745e-3f), hn::Set(d, 2.06390887954e-2f));
  near = hn::MulAdd(near, square, hn::Set(d, -5.37397155531e-2f));
  near = hn::MulAdd(near, square, hn::Set(d, 1.33314422036e-1f));
  near = hn::MulAdd(near, square, hn::Set(d, -3.33332819422e-1f));
  near = hn::MulAdd(hn::Mul(near, square), magnitude, magnitude);

  const VecF saturated = hn::Set(d, 10.0f);  // tanh rounds to 1 from 9.02
  const VecF clamped = hn::IfThenElse(hn::Gt(magnitude, saturated), saturated, magnitude);
  const VecF power = exp2(hn::Mul(clamped, hn::Set(d, 2 * kLog2E)));
  const VecF far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(power, one)));
  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), near, far), x);
}

// -inf where the band hides the key.
inline void apply_band(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const F32 d;
  const I32 di;
  const VecF hidden = hn::Set(d, kMinusInfinity);
  for (int row = 0; row < lanes; row += kLanes) {
    const VecI begin = hn::Load(di, strip.begin + row);
    const VecI end = hn::Load(di, strip.end + row);
    for (int key = 0; key < num_keys; ++key) {
      const auto j = static_cast<int32_t>(key_begin + key);
      const VecI first = j < strip.keep_end ? hn::Zero(di) : begin;
      float* score = scores + key * lanes + row;
      const VecI at = hn::Set(di, j);
      const MaskF before = hn::RebindMask(d, hn::Lt(at, first));
      const MaskF inside = hn::RebindMask(d, hn::Lt(at, end));
      const VecF value = hn::IfThenElse(inside, hn::Load(d, score), hidden);
      hn::Store(hn::IfThenElse(before, hidden, value), d, score);
    }
  }
}

// bias[key][row] of up to kChainKeys keys.
template <typename T>
void load_bias(const Strip& strip, int lanes, int64_t key_begin, int num_keys, float* bias) {
  const core::AttentionArguments& p = *strip.arguments;
  const core::ScoreOperand& from = p.bias;
  const T* rows[kMaxStripRows] = {};
  for (int r = 0; r < lanes; ++r) {
    rows[r] = reinterpret_cast<const T*>(from.data) +
              from.index(strip.sequence->batch_idx, strip.head[r], strip.query[r], strip.sequence->slot_kv + key_begin);
  }
  load_transposed(rows, lanes, num_keys, from.kv_stride, bias);
}

inline void load_bias(const Strip& strip, int lanes, int64_t key_begin, int num_keys, float* bias) {
  switch (strip.arguments->bias.dtype) {
    case core::DType::bf16: return load_bias<BFloat16>(strip, lanes, key_begin, num_keys, bias);
    case core::DType::f16: return load_bias<Float16>(strip, lanes, key_begin, num_keys, bias);
    default: return load_bias<float>(strip, lanes, key_begin, num_keys, bias);
  }
}

// NaN loses its low half, so that rounding it to bf16 by adding cannot carry out of it.
HWY_INLINE VecF shorten_nan(VecF value) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  return hn::IfThenElse(hn::IsNaN(value), hn::And(value, hn::BitCast(d, hn::Set(du, 0xFFFF0000u))), value);
}

// scale, softcap, bias, ALiBi on up to kChainKeys keys.
inline void apply_values(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *strip.arguments;
  const core::Sequence& s = *strip.sequence;
  const bool has_bias = p.features.has(core::Feature::bias);
  const bool has_alibi = p.features.has(core::Feature::alibi);
  const bool has_softcap = p.features.has(core::Feature::softcap);
  alignas(64) float bias[kChainKeys * kMaxStripRows];
  alignas(64) float slope[kMaxStripRows] = {};
  alignas(64) float position[kMaxStripRows];
  if (has_bias) load_bias(strip, lanes, key_begin, num_keys, bias);
  for (int r = 0; r < lanes; ++r) {
    if (has_alibi) slope[r] = p.alibi_slopes.at(s.batch_idx, strip.head[r]);
    position[r] = static_cast<float>(s.band.position(strip.query[r]) - key_begin);
  }
  const F32 d;
  const VecF scale = hn::Set(d, has_softcap ? p.scale / p.softcap : p.scale);
  const VecF cap = hn::Set(d, p.softcap);
  for (int key = 0; key < num_keys; ++key) {
    const VecF at = hn::Set(d, static_cast<float>(key));
    for (int row = 0; row < lanes; row += kLanes) {
      float* score = scores + key * lanes + row;
      VecF value = hn::Mul(hn::Load(d, score), scale);
      if (has_softcap) value = hn::Mul(tanh(value), cap);
      if (has_bias) value = hn::Add(value, hn::Load(d, bias + key * lanes + row));
      if (has_alibi) {
        const VecF distance = hn::Abs(hn::Sub(hn::Load(d, position + row), at));
        value = hn::NegMulAdd(hn::Load(d, slope + row), distance, value);
      }
      hn::Store(shorten_nan(value), d, score);
    }
  }
}

inline void apply_documents(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *strip.arguments;
  const core::Sequence& s = *strip.sequence;
  const F32 d;
  const I32 di;
  alignas(64) int32_t document[kMaxStripRows];
  for (int r = 0; r < lanes; ++r) document[r] = p.document_q.at(s.batch_idx, s.row_q + strip.query[r]);
  const VecF hidden = hn::Set(d, kMinusInfinity);
  for (int key = 0; key < num_keys; ++key) {
    const VecI of_key = hn::Set(di, p.document_kv.at(s.batch_idx, s.row_kv + key_begin + key));
    for (int row = 0; row < lanes; row += kLanes) {
      float* score = scores + key * lanes + row;
      const MaskF same = hn::RebindMask(d, hn::Eq(hn::Load(di, document + row), of_key));
      hn::Store(hn::IfThenElse(same, hn::Load(d, score), hidden), d, score);
    }
  }
}

inline void apply_dense_mask(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const core::ScoreOperand& mask = strip.arguments->dense_mask;
  const int64_t slot = strip.sequence->slot_kv + key_begin;
  for (int r = 0; r < lanes; ++r) {
    const std::byte* row = mask.data + mask.index(strip.sequence->batch_idx, strip.head[r], strip.query[r], slot);
    for (int key = 0; key < num_keys; ++key) {
      if (row[key * mask.kv_stride] == std::byte{0}) scores[key * lanes + r] = kMinusInfinity;
    }
  }
}

inline void apply_block_map(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *strip.arguments;
  const int64_t slot = strip.sequence->slot_kv + key_begin;
  for (int key = 0; key < num_keys;) {
    const int64_t block = (slot + key) / p.block_kv;
    const int stop =
        static_cast<int>(num_keys < (block + 1) * p.block_kv - slot ? num_keys : (block + 1) * p.block_kv - slot);
    for (int r = 0; r < lanes; ++r) {
      const int64_t idx =
          p.block_map.index(strip.sequence->batch_idx, strip.head[r], strip.query[r] / p.block_q, block);
      if (p.block_map.data[idx] != std::byte{0}) continue;
      for (int hidden = key; hidden < stop; ++hidden) scores[hidden * lanes + r] = kMinusInfinity;
    }
    key = stop;
  }
}

inline void score_chain(const Strip& strip, int lanes, float* scores, int64_t key_begin, int num_keys) {
  const core::Features features = strip.arguments->features;
  for (int key = 0; !scores_are_products(*strip.arguments) && key < num_keys; key += kChainKeys) {
    const int count = num_keys - key < kChainKeys ? num_keys - key : kChainKeys;
    apply_values(strip, lanes, scores + key * lanes, key_begin + key, count);
  }
  if (key_begin < strip.full_begin || key_begin + num_keys > strip.full_end) {
    apply_band(strip, lanes, scores, key_begin, num_keys);
  }
  if (features.has(core::Feature::document)) apply_documents(strip, lanes, scores, key_begin, num_keys);
  if (features.has(core::Feature::dense_mask)) apply_dense_mask(strip, lanes, scores, key_begin, num_keys);
  if (features.has(core::Feature::block_map)) apply_block_map(strip, lanes, scores, key_begin, num_keys);
}

// Random words of keys {2c, 2c+1} (low) and {2c+8, 2c+9} (high) of one 16-key block for up to kMaxStripRows rows,
// each from its own (query, head). Plain loops: the compiler turns the 32 x 32 bit products into vectors.
struct DropoutRows {
  alignas(64) uint32_t head[kMaxStripRows];
  alignas(64) uint32_t block[kMaxStripRows];
  alignas(64) uint32_t row[kMaxStripRows];  // in the 16-row block
};

inline void random_words(const portable::Dropout& dropout, const DropoutRows& rows, int lanes, uint32_t block_kv,
                         uint32_t c, uint32_t* HWY_RESTRICT low, uint32_t* HWY_RESTRICT high) {
  const uint32_t key0 = dropout.key0(), key1 = dropout.key1(), counter3 = dropout.counter3();
  for (int r = 0; r < lanes; ++r) {
    const portable::Random4 random = portable::philox4x32_7(
        {{block_kv * 32 + (rows.row[r] & 7) * 4 + c, rows.block[r], rows.head[r], counter3}}, key0, key1);
    low[r] = rows.row[r] < 8 ? random.word[0] : random.word[1];
    high[r] = rows.row[r] < 8 ? random.word[2] : random.word[3];
  }
}

inline void dropout_chain(const Strip& strip, int lanes, float* probs, int64_t key_begin, int num_keys) {
  const core::AttentionArguments& p = *strip.arguments;
  const portable::Dropout dropout = dropout_of(p);
  DropoutRows rows;
  for (int r = 0; r < lanes; ++r) {
    rows.head[r] = static_cast<uint32_t>(strip.sequence->batch_idx * p.heads_q + strip.head[r]);
    rows.block[r] = static_cast<uint32_t>(strip.query[r] >> 4);
    rows.row[r] = static_cast<uint32_t>(strip.query[r] & 15);
  }
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto threshold = hn::Set(du, dropout.threshold);
  const auto low_half = hn::Set(du, 0xFFFFu);
  alignas(64) uint32_t words[2][kMaxStripRows];
  const int64_t key_end = key_begin + num_keys;
  for (int64_t block = key_begin >> 4; block << 4 < key_end; ++block) {
    for (int c = 0; c < 4; ++c) {
      random_words(dropout, rows, lanes, static_cast<uint32_t>(block), static_cast<uint32_t>(c), words[0], words[1]);
      for (int part = 0; part < 4; ++part) {  // keys 2c, 2c + 1, 2c + 8, 2c + 9
        const int64_t key = (block << 4) + 2 * c + (part & 1) + (part >> 1) * 8;
        if (key < key_begin || key >= key_end) continue;
        for (int row = 0; row < lanes; row += kLanes) {
          const auto word = hn::Load(du, words[part >> 1] + row);
          const auto bits = part & 1 ? hn::ShiftRight<16>(word) : hn::And(word, low_half);
          const MaskF dropped = hn::RebindMask(d, hn::Lt(hn::BitCast(I32(), bits), hn::BitCast(I32(), threshold)));
          float* prob = probs + (key - key_begin) * lanes + row;
          hn::Store(hn::IfThenZeroElse(dropped, hn::Load(d, prob)), d, prob);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSELLA_CPU_VECTOR_SCORE_INL_HPP
