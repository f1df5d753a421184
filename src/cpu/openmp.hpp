// The pool of threads of an OpenMP runtime that somebody else has loaded, as torch does. Its threads spin for a while
// after each parallel region, so a second pool beside them would have to fight for their cores.
#pragma once

namespace tessella::cpu {

struct OpenMp {
  void (*parallel)(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags);  // GOMP_parallel
  int (*max_threads)();
  int (*thread_num)();
  int (*in_parallel)();
};

// libgomp, libomp or libiomp5: torch's if torch is loaded, else the first that was loaded. Null if the process has
// none.
const OpenMp* loaded_openmp();

}  // namespace tessella::cpu
