# tessella_precompile(target headers...): the standard headers that most sources include, and others, are read once for
# the target instead of once for each source: half of the time that a source of no kernel takes. Every source includes
# what it needs all the same: builds with ccache and those of sanitizers have no precompiled headers.
function(tessella_precompile target)
  target_precompile_headers(${target} PRIVATE
    <algorithm> <array> <cstdint> <cstring> <functional> <memory> <optional> <span> <string> <vector> ${ARGN})
endfunction()
