// The caller's score and mask modifications as the header "user.hpp" that device code includes.
#pragma once

#include <string>
#include <string_view>

namespace tessella::cuda {

// Defines user::score_mod and user::mask_mod, with a body that changes nothing where a source is empty. Compilers'
// messages name the sources "score_mod" and "mask_mod" and count their own lines.
std::string user_source(std::string_view score_mod = {}, std::string_view mask_mod = {});

// The same with user::score_mod_gradient, for backward.
std::string user_source_with_gradient(std::string_view score_mod, std::string_view mask_mod,
                                      std::string_view score_mod_gradient);

// May the source name this identifier? Yes where in doubt: in comments, and where macros or escapes could spell it.
bool may_mention(std::string_view source, std::string_view identifier);

}  // namespace tessella::cuda
