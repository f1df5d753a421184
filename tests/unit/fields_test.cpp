// core/fields.hpp: every member of a shape counts, in the way that its Fit says.
#include "core/fields.hpp"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/compile/members.hpp"
#include "operations/append/shape.hpp"
#include "operations/attention/shape.hpp"
#include "operations/copy_pages/shape.hpp"
#include "operations/linear/shape.hpp"
#include "operations/merge/shape.hpp"
#include "operations/quantize/shape.hpp"

namespace tessella::core {
namespace {

// Of a member that is no list of others.
template <typename Value>
void change(Value& value) {
  if constexpr (std::is_same_v<Value, Features>) {
    value |= Feature::sink;
  } else if constexpr (std::is_same_v<Value, std::string_view>) {
    value = "return score;";
  } else if constexpr (std::is_same_v<Value, Device>) {
    value.id = 1;
  } else if constexpr (std::is_same_v<Value, Operation>) {
    value = Operation::backward;
  } else if constexpr (std::is_same_v<Value, DType>) {
    value = DType::f16;
  } else if constexpr (std::is_same_v<Value, QueryClass>) {
    value = QueryClass::few;
  } else if constexpr (std::is_same_v<Value, Activation>) {
    value = Activation::swiglu;
  } else if constexpr (std::is_same_v<Value, bool>) {
    value = !value;
  } else {
    value += 1;
  }
}

// "" or what check_fits() says.
template <typename S>
std::string misfit(const S& plan_shape, const S& call) {
  Plan plan;
  plan.shape = plan_shape;
  try {
    check_fits(plan, call, "plan_run");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

template <typename S>
class Fields : public testing::Test {};
using Shapes = testing::Types<AttentionShape, MergeShape, AppendShape, CopyPagesShape, QuantizeShape, LinearShape>;
TYPED_TEST_SUITE(Fields, Shapes);

// One entry of the list a member; the operands and arrays of a list are one member of the shape.
TYPED_TEST(Fields, NameEveryMember) {
  std::vector<std::string> owners;
  TypeParam::fields([&](const FieldName& field, auto, Fit) {
    const bool is_operand = field.member != nullptr && !std::string_view(field.owner).ends_with("bias");
    const std::string owner = field.idx >= 0                              ? "mod_args"
                              : !is_operand                               ? field.owner
                              : std::is_same_v<TypeParam, AttentionShape> ? "operands"
                                                                          : field.owner;
    if (std::find(owners.begin(), owners.end(), owner) == owners.end()) owners.push_back(owner);
  });
  EXPECT_EQ(owners.size(), cuda::num_members<TypeParam>());
}

// A change of any member makes another key, and a call that does not fit unless the Fit allows it.
TYPED_TEST(Fields, EveryMemberCounts) {
  TypeParam::fields([&](const FieldName& field, auto get, Fit fit) {
    TypeParam plan, call;
    change(std::invoke(get, call));
    // The plan has the lesser of the two.
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(std::invoke(get, call))>, bool>) {
      if (std::invoke(get, plan)) std::swap(plan, call);
    }
    EXPECT_NE(call, plan) << field;
    const bool fits = fit == Fit::hint || fit == Fit::at_least;
    EXPECT_EQ(misfit(plan, call).empty(), fits) << field << ": " << misfit(plan, call);
    // A call that says nothing fits a plan that does.
    if (fit == Fit::if_given) {
      EXPECT_EQ(misfit(call, plan), "") << field;
    }
    if (fit == Fit::at_most) {
      EXPECT_EQ(misfit(call, plan), "") << field;
    }
    if (fit == Fit::at_least) {
      EXPECT_NE(misfit(call, plan), "") << field;
    }
  });
}

TEST(Fields, MessagesNameTheMember) {
  AttentionShape plan;
  plan.seqlen_q = 128;
  plan.operands[Name::k] = {DType::bf16, 16};
  AttentionShape call = plan;
  call.seqlen_q = 129;
  EXPECT_EQ(misfit(plan, call), "plan_run: seqlen_q is 129, expected at most 128, the plan's bound");
  call = plan;
  call.operands[Name::k].dtype = DType::f16;
  EXPECT_EQ(misfit(plan, call), "plan_run: k.dtype is f16, expected bf16, what the plan was made for");
  call = plan;
  call.operands[Name::k].alignment = 8;
  EXPECT_EQ(misfit(plan, call), "plan_run: k.alignment is 8, expected at least 16, as the plan was made for");
  call = plan;
  call.score_mod = "return score;";
  EXPECT_EQ(misfit(plan, call), "plan_run: score_mod is not the source that the plan was made for");
  call = plan;
  call.features |= Feature::sink;
  EXPECT_EQ(misfit(plan, call), "plan_run: sink is given, and the plan was made without it");
}

// Lengths go up to quarters of a power of two, windows with them; all else stays.
TEST(Fields, Rounded) {
  AttentionShape shape;
  shape.batch = 3;
  shape.seqlen_q = 1;
  shape.seqlen_kv = 65;
  shape.total_kv = 1025;
  shape.window_keys = 1793;
  const AttentionShape key = rounded(shape);
  EXPECT_EQ(key.batch, 3);
  EXPECT_EQ(key.seqlen_q, 1) << "few queries stay";
  EXPECT_EQ(key.seqlen_kv, 80);
  EXPECT_EQ(key.total_kv, 1280);
  EXPECT_EQ(key.window_keys, 2048);
  EXPECT_EQ(rounded(key), key);
  EXPECT_EQ(rounded(AttentionShape()).window_keys, kAnyKeys);
  for (const auto& [seqlen_q, to] : {std::pair{0, 1}, {3, 3}, {21, 21}, {23, 24}, {33, 36}, {64, 64}, {65, 80}}) {
    shape.seqlen_q = seqlen_q;
    EXPECT_EQ(rounded(shape).seqlen_q, to);
  }
  for (int64_t heads = 1; heads <= 64; ++heads) {
    shape.seqlen_q = 64 / heads;
    EXPECT_LE(rounded(shape).seqlen_q * heads, 64) << "64 query rows stay 64";
  }
}

}  // namespace
}  // namespace tessella::core
