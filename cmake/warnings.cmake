# tessella_warnings(target): the warnings this project lives with; errors under TESSELLA_WERROR. Private: a user who
# builds us as a subdirectory gets none of it.
function(tessella_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wundef
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
    # Designated initialisers name what differs; the rest keeps its default on purpose.
    -Wno-missing-field-initializers
    # False alarms of g++ 12: std::string's operator+ (GCC bug 105651), and the AVX-512 intrinsics' own undefined
    # vectors (GCC bug 105593).
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict -Wno-maybe-uninitialized -Wno-uninitialized>
    # clang's note that it did not unroll where a pragma asks for it, at -O1 everywhere.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>
    # Vectors as template arguments, tuning attributes that only one compiler knows, ABI changes of old compilers.
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-ignored-attributes -Wno-psabi>)
  if(TESSELLA_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
