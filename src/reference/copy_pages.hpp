// The oracle of copy_pages.
#pragma once

#include "core/arguments.hpp"
#include "core/kernel.hpp"

namespace tessella::reference {

void copy_pages_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::reference
