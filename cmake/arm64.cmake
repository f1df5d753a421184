# Cross build for arm64 with Debian's cross compiler; needs libhwy-dev:arm64, libtbb-dev:arm64 and qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# Runs what the build and ctest run. The arm64 C library comes with the packages above.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
