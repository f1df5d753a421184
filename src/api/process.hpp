// What a process makes once, at its first call.
#pragma once

namespace tessella::api {

// Makes it, unless it is there. A fork waits meanwhile: a child would wait for good for what a thread was making that
// it does not have.
void prepare_process();

}  // namespace tessella::api
