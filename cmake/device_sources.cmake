# cmake -DROOT=src -DOUTPUT=file.cpp "-DFILES=a.hpp;b.hpp" -P device_sources.cmake
# Writes the device code's headers as strings of the library, under the names they are included by. Literals with a
# length: a compiler that counts characters one by one gives up at some number of steps.
set(source "// Generated from the headers below by cmake/device_sources.cmake.\n#include \"cuda/compile/program.hpp\"\n\n")
string(APPEND source "namespace tessella::cuda {\n\nusing namespace std::string_view_literals;\n\nstd::span<const DeviceSource> device_sources() {\n")
string(APPEND source "  static constexpr DeviceSource kSources[] = {\n")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" content)
  string(APPEND source "{\"${file}\"sv,\nR\"tessella(${content})tessella\"sv},\n")
endforeach()
string(APPEND source "  };\n  return kSources;\n}\n\n}  // namespace tessella::cuda\n")
file(WRITE "${OUTPUT}" "${source}")
