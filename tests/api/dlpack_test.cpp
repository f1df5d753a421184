// DLPack in and out: shapes, strides, offsets, dtypes, read-only, ownership; versioned and not.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tessella/tensor.hpp"

namespace ts = tessella;

namespace {

// The DLPack ABI as producers write it, independent of the library's own structs.
struct DlTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct Managed {
  DlTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  DlTensor tensor;
};

class DlpackTest : public testing::Test {
 protected:
  std::vector<uint16_t> memory_ = std::vector<uint16_t>(64);
  int64_t shape_[4] = {1, 3, 2, 4};
  int64_t strides_[4] = {48, 16, 4, 1};
  DlTensor tensor_{memory_.data(), 1, 0, 4, 4, 16, 1, shape_, strides_, 8};
};

TEST_F(DlpackTest, AViewSharesMemoryAndStrides) {
  const Managed managed{tensor_, nullptr, nullptr};
  const ts::TensorView view = ts::from_dlpack(&managed, false);
  EXPECT_EQ(view.data(), reinterpret_cast<char*>(memory_.data()) + 8);
  EXPECT_EQ(view.dtype(), ts::bf16);
  EXPECT_EQ(view.shape(1), 3);
  EXPECT_EQ(view.stride(1), 16);
  EXPECT_FALSE(view.is_read_only());
}

TEST_F(DlpackTest, NullStridesMeanDense) {
  tensor_.strides = nullptr;
  const Managed managed{tensor_, nullptr, nullptr};
  const ts::TensorView view = ts::from_dlpack(&managed, false);
  EXPECT_EQ(view.stride(0), 24);
  EXPECT_EQ(view.stride(1), 8);
  EXPECT_EQ(view.stride(3), 1);
}

TEST_F(DlpackTest, ReadOnlyIsHonoured) {
  const ManagedVersioned managed{1, 1, nullptr, nullptr, 1, tensor_};
  const ts::TensorView view = ts::from_dlpack(&managed, true);
  EXPECT_TRUE(view.is_read_only());
  EXPECT_THROW(ts::to_dlpack(view, false), ts::Error);
  auto* back = static_cast<ManagedVersioned*>(ts::to_dlpack(view, true));
  EXPECT_EQ(back->flags & 1, 1u);
  back->deleter(back);
}

TEST_F(DlpackTest, UnknownThingsAreErrors) {
  EXPECT_THROW(ts::from_dlpack(nullptr, false), ts::Error);
  const ManagedVersioned future{2, 0, nullptr, nullptr, 0, tensor_};
  EXPECT_THROW(ts::from_dlpack(&future, true), ts::Error);
  DlTensor odd = tensor_;
  odd.lanes = 2;
  const Managed lanes{odd, nullptr, nullptr};
  EXPECT_THROW(ts::from_dlpack(&lanes, false), ts::Error);
  odd = tensor_;
  odd.device_type = 10;  // ROCm
  const Managed device{odd, nullptr, nullptr};
  EXPECT_THROW(ts::from_dlpack(&device, false), ts::Error);
}

TEST_F(DlpackTest, ThereAndBack) {
  const auto view = ts::view(memory_.data(), ts::f16, {2, 3, 4});
  auto* managed = static_cast<Managed*>(ts::to_dlpack(view, false));
  EXPECT_EQ(managed->tensor.data, memory_.data());
  EXPECT_EQ(managed->tensor.code, 2);
  EXPECT_EQ(managed->tensor.bits, 16);
  EXPECT_EQ(managed->tensor.device_type, 1);
  const ts::TensorView again = ts::from_dlpack(managed, false);
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(again.shape(axis), view.shape(axis));
    EXPECT_EQ(again.stride(axis), view.stride(axis));
  }
  managed->deleter(managed);
}

// DLPack 1.1's codes: int 0, uint 1, float8_e4m3fn 10, float8_e5m2 12.
TEST_F(DlpackTest, DtypesOfEightAndFourBits) {
  struct Row {
    ts::DType dtype;
    uint8_t code, bits;
  };
  for (const Row& row :
       {Row{ts::u8, 1, 8}, Row{ts::i8, 0, 8}, Row{ts::i4, 0, 4}, Row{ts::f8e4m3fn, 10, 8}, Row{ts::f8e5m2, 12, 8}}) {
    const auto view = ts::view(memory_.data(), row.dtype, {2, 3, 4});
    for (const bool versioned : {false, true}) {
      void* managed = ts::to_dlpack(view, versioned);
      const DlTensor& tensor =
          versioned ? static_cast<ManagedVersioned*>(managed)->tensor : static_cast<Managed*>(managed)->tensor;
      EXPECT_EQ(tensor.code, row.code);
      EXPECT_EQ(tensor.bits, row.bits);
      EXPECT_EQ(tensor.lanes, 1);
      EXPECT_EQ(ts::from_dlpack(managed, versioned).dtype(), row.dtype);
      if (versioned) {
        static_cast<ManagedVersioned*>(managed)->deleter(static_cast<ManagedVersioned*>(managed));
      } else {
        static_cast<Managed*>(managed)->deleter(static_cast<Managed*>(managed));
      }
    }
  }
}

TEST_F(DlpackTest, FourBitsPaddedToAByteAreErrors) {
  tensor_.code = 0;
  tensor_.bits = 4;
  const ManagedVersioned padded{1, 1, nullptr, nullptr, 4, tensor_};
  try {
    ts::from_dlpack(&padded, true);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::unsupported);
    EXPECT_STREQ(error.what(), "from_dlpack: the i4 elements are padded to a byte each, expected two a byte");
  }
}

}  // namespace
