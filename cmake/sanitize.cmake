# TESSELLA_SANITIZE: a list for -fsanitize, such as address,undefined. It must reach every target, tests included.
if(TESSELLA_SANITIZE)
  add_compile_options(-fsanitize=${TESSELLA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # The kernels inline everything: at -O2 with full debug information one file takes five minutes and 2 GB, this way half a
  # minute. Line numbers are all that a report needs. What the standard library inlines costs most of what is left.
  add_compile_options(-O1 -g1 -fno-inline)
  add_link_options(-fsanitize=${TESSELLA_SANITIZE})
  # Assertions are worth their time here, whatever the build type says.
  foreach(config RELWITHDEBINFO RELEASE)
    string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_${config} "${CMAKE_CXX_FLAGS_${config}}")
    string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_${config} "${CMAKE_C_FLAGS_${config}}")
  endforeach()
endif()
