// Hashes of what the GPU's kernels write in the emulator: a case for each way through them.
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cuda/kernels/decode/recipe.hpp"
#include "emulated_run.hpp"
#include "hashes/hash.hpp"

namespace {

using tessella::tests::Case;

Case sized(int64_t head_dim) {
  return {.dtype = "bf16",
          .batch = 2,
          .heads_q = 2,
          .heads_kv = 1,
          .seqlen_q = 150,
          .seqlen_kv = 200,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .seed = 1};
}

using Changes = std::vector<std::function<void(Case&)>>;

std::vector<Case> cases_of(const Case& base, const Changes& changes) {
  std::vector<Case> cases;
  for (const std::function<void(Case&)>& change : changes) change(cases.emplace_back(base));
  return cases;
}
std::vector<Case> cases_of(int64_t head_dim, const Changes& changes) { return cases_of(sized(head_dim), changes); }

// Two queries, four heads on one, of which three blocks share the keys.
Case decoded() {
  Case c = sized(64);
  c.heads_q = 4;
  c.seqlen_q = 2;
  c.seqlen_kv = 500;
  return c;
}

// False if it did not run.
bool print_case(const char* kernel, const Case& c,
                const std::function<std::string(tessella::tests::Call&, const Case&)>& run) {
  tessella::tests::Call call(c);
  const std::string wrong = run(call, c);
  if (wrong.empty()) {
    tessella::tests::print_hash(call.results(), kernel + (" " + to_string(c)));
  } else {
    std::printf("%-16s %s %s\n", "failed", kernel, to_string(c).c_str());
    std::fprintf(stderr, "%s\n", wrong.c_str());
  }
  return wrong.empty();
}

}  // namespace

int main() {
  const std::vector<Case> sm90_64 = cases_of(
      64,
      {[](Case&) {}, [](Case& c) { c.dtype = "f16"; }, [](Case& c) { c.window_right = 0; },
       [](Case& c) { c.window_left = 50, c.window_right = 4; }, [](Case& c) { c.packed_q = c.packed_kv = true; },
       [](Case& c) { c.seqlens_q = c.seqlens_kv = c.sink = true; }, [](Case& c) { c.page_size = 16; },
       [](Case& c) { c.softcap = 2; }, [](Case& c) { c.softcap = 20, c.lse = false; }, [](Case& c) { c.bias = "bhqk"; },
       [](Case& c) { c.alibi = "h"; }, [](Case& c) { c.document = true; }, [](Case& c) { c.dense = "bhqk"; },
       [](Case& c) { c.block_map = "bhqk", c.block_q = c.block_kv = 16; }, [](Case& c) { c.batch_invariant = true; }});
  const std::vector<Case> sm90_128 = cases_of(
      128, {[](Case&) {}, [](Case& c) { c.chunk = 70; }, [](Case& c) { c.max_seqlen = 8192; },
            [](Case& c) { c.dropout = 0.3; }, [](Case& c) { c.alibi = "bh"; }, [](Case& c) { c.dense = "qk"; }});
  const std::vector<Case> sm90_256 = cases_of(256, {[](Case&) {}, [](Case& c) { c.window_right = 0; }});
  const std::vector<Case> sm80_32 =
      cases_of(32, {[](Case&) {}, [](Case& c) { c.window_right = 0, c.leftpad_kv = true; },
                    [](Case& c) { c.softcap = 2; }, [](Case& c) { c.page_size = 5; }, [](Case& c) { c.dense = "bhqk"; },
                    [](Case& c) { c.document = true; }, [](Case& c) { c.batch_invariant = true; }});
  const std::vector<Case> decode = cases_of(
      decoded(),
      {[](Case&) {}, [](Case& c) { c.dtype = "f16", c.spread = 20; }, [](Case& c) { c.seqlen_q = 16; },
       [](Case& c) { c.window_left = 90, c.window_right = 0, c.keep_first = 3; }, [](Case& c) { c.page_size = 24; },
       [](Case& c) { c.softcap = 2, c.alibi = "h"; }, [](Case& c) { c.seqlens_kv = c.sink = true; },
       [](Case& c) { c.dtype = "f16", c.kv_dtype = "i8", c.kv_scale = "th"; },
       [](Case& c) { c.kv_dtype = "i4", c.kv_scale = "th"; }});
  const std::vector<Case> latents =
      cases_of(decoded(), {[](Case& c) { c.head_dim_qk = 576, c.head_dim_v = 512, c.v_in_k = true; }});
  const auto decode_by = [](tessella::tests::MakeRecipe recipe) {
    return [recipe](tessella::tests::Call& call, const Case& of) {
      return tessella::tests::run_decode(call, recipe, of.max_seqlen, 1, {.num_splits = 3});
    };
  };
  bool all_ran = true;
  try {
    for (const auto* cases : {&decode, &latents}) {
      for (const Case& c : *cases) all_ran &= print_case("decode", c, decode_by(tessella::cuda::decode_recipe));
    }
    all_ran &= print_case("decode_unified_max", decoded(), decode_by(tessella::cuda::decode_unified_max_recipe));
    for (const auto* cases : {&sm90_64, &sm90_128, &sm90_256}) {
      for (const Case& c : *cases) {
        all_ran &= print_case("forward_sm90", c, [](tessella::tests::Call& call, const Case& of) {
          return tessella::tests::run_sm90(call, of, 1);
        });
      }
    }
    for (const Case& c : sm80_32) {
      all_ran &= print_case("forward_sm80", c, [](tessella::tests::Call& call, const Case&) {
        return tessella::tests::run_sm80(call, 1);
      });
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emulated_hashes: %s\n", error.what());
    return 1;
  }
  return all_ran ? 0 : 1;
}
