// The caller's texts for `score` and `keep` as the header "user.hpp" that device code includes.
#pragma once

#include <string>
#include <string_view>

namespace tessella::cuda {

// Declares user::score and user::keep, with a body that changes nothing where a text is empty. Compilers' messages name
// the texts "score" and "keep" and count their own lines.
std::string user_text(std::string_view score = {}, std::string_view keep = {});

// May the text name this identifier? Yes where in doubt: in comments, and where macros or escapes could spell it.
bool may_mention(std::string_view text, std::string_view identifier);

}  // namespace tessella::cuda
