#include "options/option_words.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "options/attention_options.hpp"

namespace tessella::cli {
namespace {

constexpr std::string_view kFunctions[] = {"forward",        "backward",        "merge",          "append",
                                           "copy_pages",     "plan_make",       "plan_run",       "plan_initialize",
                                           "plan_workspace", "kernel_describe", "kernel_refusal", "kernel_cost_of",
                                           "check",          "kernels build"};

// What has another name on the command line.
constexpr std::array<std::string_view, 2> kNames[] = {{"window_left", "--mask window"},
                                                      {"window_right", "--mask window"},
                                                      {"chunk", "--mask chunk"},
                                                      {"keep_first", "--mask keep_first"},
                                                      {"prefix_lengths", "--mask prefix"},
                                                      {"document_ids_q", "--mask document"},
                                                      {"document_ids_kv", "--mask document"},
                                                      {"dense_mask", "--mask dense"},
                                                      {"block_map", "--mask block_map"},
                                                      {"block_map_q", "--mask block_map"},
                                                      {"block_map_kv", "--mask block_map"},
                                                      {"causal_top_left", "--mask causal_top_left"},
                                                      {"archs", "--arch"}};

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string option_of(std::string_view word) {
  const auto* named = std::ranges::find(kNames, word, [](const auto& row) { return row[0]; });
  if (named != std::end(kNames)) return std::string((*named)[1]);
  std::string option(word);
  std::ranges::replace(option, '_', '-');
  return is_attention_option(option) ? "--" + option : "";
}

void replace(std::string& string, std::string_view from, std::string_view to) {
  if (const size_t at = string.find(from); at != std::string::npos) string.replace(at, from.size(), to);
}

}  // namespace

std::string in_options(const Error& error, std::string_view layout) {
  std::string_view message = error.what();
  const size_t colon = message.find(": ");
  const bool has_function =
      colon != message.npos && std::ranges::find(kFunctions, message.substr(0, colon)) != std::end(kFunctions);
  if (has_function) message.remove_prefix(colon + 2);
  const ErrorCode code = error.code();
  if (code != ErrorCode::invalid_argument && code != ErrorCode::unsupported) return std::string(message);
  std::string said;
  for (size_t begin = 0; begin < message.size();) {
    size_t end = begin;
    while (end < message.size() && is_of_word(message[end])) ++end;
    const std::string_view word = message.substr(begin, std::max<size_t>(end - begin, 1));
    // Of English words the first alone is an argument: "scale is ...", and not "on another scale".
    const bool is_name = (begin == 0 && has_function) || said.ends_with("option ") || word.find('_') != word.npos;
    const std::string option = is_name && end > begin ? option_of(word) : "";
    if (!option.empty() && said.ends_with("option ")) said.erase(said.size() - std::string_view("option ").size());
    said += option.empty() ? word : option;
    begin += word.size();
  }
  const bool is_swapped = layout == "bhsd";
  replace(said, "is the memory (batch, heads, seqlen, head_dim)?",
          is_swapped ? "is it --layout bshd?" : "is it --layout bhsd?");
  if (is_swapped && said.find("layout batch, seqlen") != said.npos)
    said += "; --layout bhsd was swapped to this order first";
  return said;
}

}  // namespace tessella::cli
