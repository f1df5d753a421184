#include "cuda/compile/user_source.hpp"

namespace tessella::cuda {
namespace {

// The source begins and ends with a line of its own, so that a comment in its last line ends there too.
std::string function(std::string_view head, std::string_view name, std::string_view source,
                     std::string_view otherwise) {
  std::string all(head);
  if (source.empty()) return all.append(" { ").append(otherwise).append(" }\n");
  return all.append(" {\n#line 1 \"").append(name).append("\"\n").append(source).append("\n#line 1 \"user.hpp\"\n}\n");
}

constexpr const char* kBegin =
    "#pragma once\n#include \"cuda/device/score/arrays.cuh\"\nnamespace tessella::device::user {\n";
constexpr const char* kEnd = "}  // namespace tessella::device::user\n";

std::string functions(std::string_view score_mod, std::string_view mask_mod) {
  return function(
             "__device__ __forceinline__ float score_mod(float score, int b, int h, int q, int k, float q_minus_k, "
             "const "
             "Arrays& arrays)",
             "score_mod", score_mod, "return score;") +
         function("__device__ __forceinline__ bool mask_mod(int b, int h, int q, int k, const Arrays& arrays)",
                  "mask_mod", mask_mod, "return true;");
}

bool is_of_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::string user_source(std::string_view score_mod, std::string_view mask_mod) {
  return kBegin + functions(score_mod, mask_mod) + kEnd;
}

std::string user_source_with_gradient(std::string_view score_mod, std::string_view mask_mod,
                                      std::string_view score_mod_gradient) {
  return kBegin + functions(score_mod, mask_mod) +
         function(
             "__device__ __forceinline__ float score_mod_gradient(float score, float d_score, int b, int h, int q, int "
             "k, float q_minus_k, const Arrays& arrays)",
             "score_mod_gradient", score_mod_gradient, "return d_score;") +
         kEnd;
}

bool may_mention(std::string_view source, std::string_view identifier) {
  if (source.find_first_of("#\\") != source.npos) return true;
  for (size_t at = source.find(identifier); at != source.npos; at = source.find(identifier, at + 1)) {
    const size_t end = at + identifier.size();
    const bool begins = at == 0 || !is_of_identifier(source[at - 1]);
    const bool ends = end == source.size() || !is_of_identifier(source[end]);
    if (begins && ends) return true;
  }
  return false;
}

}  // namespace tessella::cuda
