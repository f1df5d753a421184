// The number of threads that the process may use.
#pragma once

namespace tessella::process {

// min(affinity, cgroup CPU quota rounded up, TESSELLA_NUM_THREADS), at least 1. Read once per process.
int thread_limit();

}  // namespace tessella::process
