// DLPack tensors to views and back, without a copy. The structs follow the DLPack 1.0 C ABI
// (https://dmlc.github.io/dlpack/latest/c_api.html), both the unversioned and the versioned structs.
#pragma once

#include "tessella/tessella.h"

namespace tessella::api {

tessella_tensor from_dlpack(const void* managed, bool versioned);
void* to_dlpack(const tessella_tensor& tensor, bool versioned);

}  // namespace tessella::api
