# `ctest -L quick`: a minute on two cores in which every kernel computes. ctest reads this file behind the lists of tests
# that gtest_discover_tests() leaves in variables TARGET_TESTS.
set(quick
  # Parts by hand; of those that compile device code, what compiles none.
  "^(band|compare|cubin|cubin_store|driver_types|dropout|embedded|float16|forward_arguments|forward_config)_test\\."
  "^(forward_cost|no_gpu|nvrtc|sequence|softcap|cases)_test\\."
  "^user_source_test\\.UserText\\."
  # Kernels of the CPU and the reference, and of the GPU where there is one.
  "^(reference|ladder|amx_refused)_test\\."
  "^forward_test\\..*Forward.*\\.(AutomaticRunsEveryDtype|Plain|EachFeature|EmptySizes)"
  "^nan_test\\..*\\.InOneVisibleKey/"
  # Kernels of the GPU, emulated; and what is queued for them.
  "^(emulator|schedule)_test\\."
  "^emulated_forward_test\\.Emulated(Sm90\\.Half|Sm80\\.Masks)$"
  "^emulated_ladder_test\\..*\\.IsRight/"
  "^fake_driver_test\\."
  "^forward_launch_test\\.ForwardLaunch\\.(OneKernelWhereMasksAreIntervals|HoppersBlocksStay|TheLadderQueuesItsKernels)$"
  # The API.
  "^(api|dlpack|plan|refusal|sharing)_test\\.")

get_cmake_property(variables VARIABLES)
list(FILTER variables INCLUDE REGEX "_TESTS$")
foreach(variable IN LISTS variables)
  foreach(test IN LISTS ${variable})
    foreach(pattern IN LISTS quick)
      if(test MATCHES "${pattern}")
        set_tests_properties("${test}" PROPERTIES LABELS quick)
      endif()
    endforeach()
  endforeach()
endforeach()
