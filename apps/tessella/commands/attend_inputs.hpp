// q, k and v of `tessella attend` out of its files.
#pragma once

#include <string>
#include <vector>

#include "files/listed_array.hpp"
#include "options/call.hpp"

namespace tessella::cli {

enum class Layout { bshd, bhsd };  // of the files; the library's own is bshd

// Exchanges the axes of seqlen and heads, both ways.
void swap_layout(Layout layout, tessella_tensor& tensor);

struct AttendInputs {
  std::vector<std::string> files;
  std::vector<std::string> names;  // of q, k and v in the files; empty: common ones
  Layout layout = Layout::bshd;
  tessella_dtype dtype = TESSELLA_DTYPE_DEFAULT;     // of raw .npy elements
  tessella_dtype kv_dtype = TESSELLA_DTYPE_DEFAULT;  // of what the bytes of k and v are
};

// "--check 5" would read a file 5, and check another number of rows.
void expect_no_rows_behind_check(const std::string& check, const std::vector<std::string>& files);

// Sets the call's q, k and v. Returns the other arrays of the files.
std::vector<ListedArray> read_inputs(const AttendInputs& inputs, Call& call);

// Zeros of a tensor's shape, in the memory layout of the files; the view of them is the library's.
Array allocate_like(const std::string& name, Layout layout, const tessella_tensor& like, tessella_dtype dtype);

// The dtype that the call's options say, or that of q; beside fp8 bf16.
tessella_dtype out_dtype_of(const Call& call, tessella_dtype of_q);

// Sets the call's out (and lse), in the memory layout of the inputs. Returns out as the files are laid out.
Array allocate_out(Layout layout, Call& call);
Array allocate_lse(Call& call);

}  // namespace tessella::cli
