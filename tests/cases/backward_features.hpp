// The features of backward, a case each.
#pragma once

#include <string>
#include <vector>

#include "cases/cases.hpp"

namespace tessella::tests {

// What the options and tensors of a forward call have, one case each.
inline std::vector<std::string> backward_features() {
  return {"",
          "window_right=0",
          "window_left=3 window_right=1 keep_first=2",
          "causal_top_left=1",
          "chunk=4",
          "prefix=1",
          "document=1",
          "dense=bqk",
          "block_map=qk block_q=3 block_kv=2",
          "packed_q=1 packed_kv=1",
          "packed_q=1 seqlens_kv=1",
          "packed_kv=1 seqlens_q=1",
          "packed_q=1 packed_kv=1 seqlens_q=1 seqlens_kv=1 window_right=0",
          "seqlens_q=1 seqlens_kv=1 leftpad_kv=1",
          "bias=bhqk",
          "bias=hk leftpad_kv=1 bias_f32=0",
          "bias=q bias_f32=0",
          "bias=1",
          "alibi=h",
          "alibi=bh window_right=0",
          "softcap=2",
          "softcap=1.5 bias=qk alibi=h sink=1 dropout=0.3 window_right=0",
          "sink=1",
          "sink=1 dense=qk",
          "dropout=0.4",
          "scale=-0.3",
          "spread=8",
          "d_lse=1",
          "d_lse=1 sink=1 dropout=0.2 window_right=0"};
}

// Masks of every kind that hide all keys from some queries, whose q and d_out are NaN; with a sink their LSE is finite.
inline std::vector<std::string> idle_rows_beside_a_sink() {
  const std::string beside = "sink=1 d_lse=1 masked_nan=1 ";
  std::vector<std::string> features;
  for (const char* mask :
       {"window_right=0 seqlen_q=70 seqlen_kv=40", "causal_top_left=1 window_left=3 seqlen_q=40", kBandsWithHoles[1],
        "seqlen_kv=0", "seqlens_q=1 seqlens_kv=1", "packed_q=1 packed_kv=1 window_right=0",
        "document=1 mask_region=10 seqlen_q=90 seqlen_kv=60", "dense=qk", "dense=bhqk alibi=h softcap=3",
        "dense=bqk bias=bhqk dropout=0.3", "dense=hqk window_left=20 keep_first=2",
        "block_map=hqk block_q=3 block_kv=5"}) {
    features.push_back(beside + mask);
  }
  return features;
}

// A case of these sizes with a feature, and all the gradients that it has unless it names some.
inline Case with_feature(const std::string& sizes, const std::string& feature) {
  Case c = parse(sizes + " " + feature);
  if (feature.find("gradients=") != std::string::npos) return c;
  c.gradients = "qkv";
  if (!c.bias.empty()) c.gradients += 'b';
  if (c.sink) c.gradients += 's';
  if (!c.alibi.empty()) c.gradients += 'a';
  return c;
}

}  // namespace tessella::tests
