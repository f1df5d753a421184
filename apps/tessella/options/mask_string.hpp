// Masks as strings: "causal", "window:1024,0 & keep_first:4", "document:ids.npy".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options/call.hpp"

namespace tessella::cli {

inline constexpr const char* kMaskHelp =
    "parts joined with '&', or --mask again: none, causal, causal_top_left, window:LEFT,RIGHT (-1 = no bound), "
    "chunk:N, "
    "keep_first:N, prefix:N,..., document:IDS, dense:FILE, block_map:FILE,TILE_Q,TILE_KV; beside it --key-ranges and "
    "--query-ranges";

// Adds the mask's parts to a call whose q and k are set.
void apply_mask(std::string_view string, Call& call);

// "none,causal,window:128,0" as three masks: a comma before a word parts masks, one before a number belongs to it.
std::vector<std::string> split_masks(std::string_view string);

}  // namespace tessella::cli
