// JSON objects, read member by member.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "files/json.hpp"

namespace tessella::cli {

// Gives each member away as soon as it ends, so the work is linear in their number. Returns what is wrong with the
// string, "is no JSON", or "".
std::string read_members(std::string_view string,
                         const std::function<void(const std::string& name, const Json& value)>& take);

}  // namespace tessella::cli
