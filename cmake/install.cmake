# find_package(tessella), pkg-config, and the files they point at. Highway and oneTBB are private to a shared library,
# so that neither asks for them.
include(CMakePackageConfigHelpers)

install(TARGETS tessella EXPORT tessella-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessella ${PROJECT_SOURCE_DIR}/bindings/torch/tessella
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessella)
configure_package_config_file(cmake/tessella-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/tessella-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/tessella-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/tessella-config.cmake ${PROJECT_BINARY_DIR}/cmake/tessella-config-version.cmake
  DESTINATION ${package_dir} COMPONENT development)
install(EXPORT tessella-targets NAMESPACE tessella:: DESTINATION ${package_dir} COMPONENT development)

# A .pc file that finds its prefix by itself may be moved with it; an absolute library folder stays absolute.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(pc_libdir "${CMAKE_INSTALL_LIBDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
  set(pc_prefix "\${pcfiledir}/${pc_up}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/tessella.pc.in ${PROJECT_BINARY_DIR}/cmake/tessella.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/tessella.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)

# The wheel (pyproject.toml) takes this component alone: the library beside the package's modules, under its plain name,
# and torch's operators.
install(FILES $<TARGET_FILE:tessella> RENAME libtessella.so DESTINATION tessella COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET tessella_torch)
  install(FILES $<TARGET_FILE:tessella_torch> DESTINATION tessella COMPONENT python EXCLUDE_FROM_ALL)
endif()
