# tessella_precompile(target headers...): the standard headers that most sources include, and others, are read once for
# the target instead of once for each source. Every source includes what it needs all the same: builds of sanitizers, and
# those with a compiler launcher (ccache keeps nothing of a source with a precompiled header), have none.
if(TESSELLA_SANITIZE OR CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
function(tessella_precompile target)
  target_precompile_headers(${target} PRIVATE
    <algorithm> <array> <cstdint> <cstring> <functional> <memory> <optional> <span> <string> <vector> ${ARGN})
endfunction()
