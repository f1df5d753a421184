# `ctest -L quick`: a minute on two cores in which every kernel computes.
# `ctest -L long`: the same at many sizes and spreads; ./test.sh leaves it out, and .ci/run takes a share (.ci/steps.sh).
# ctest reads this file in each folder behind the lists of tests, TARGET_TESTS, that gtest_discover_tests() makes.

# label(LABEL TARGET [REGEX]): of its tests, or those whose names behind the target match. ctest adds a second label.
function(label name target)
  if(NOT DEFINED ${target}_TESTS) # of another folder, or not built
    return()
  endif()
  set(tests ${${target}_TESTS})
  list(FILTER tests INCLUDE REGEX "^${target}\\.(${ARGN})")
  if(NOT tests)
    message(FATAL_ERROR "tests/labels.cmake: no test of ${target} is ${ARGN}")
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS ${name})
endfunction()
macro(quick)
  label(quick ${ARGN})
endmacro()
macro(long)
  label(long ${ARGN})
endmacro()

# Parts by hand.
foreach(part band cancelled_work cases check compare cubin cubin_store driver_types dropout embedded fields float16
    forward_arguments forward_config forward_cost linear_tiles no_gpu nvrtc pages sequence softcap tile_map)
  quick(${part}_test)
endforeach()
quick(user_source_test UserSource) # its others compile device code

# Kernels of the CPU and the reference, and of the GPU where there is one.
quick(reference_test)
quick(ladder_test)
quick(amx_denied_test)
quick(forward_test "ForwardChoice|Kernels/Forward.(Plain|EachFeature|EmptySizes)/")
quick(nan_test "Kernels/Nan.InOneVisibleKey/")
quick(decode_splits_test "Kernels/DecodeSplits.(HeadsOfAUnit|RowsOfAnyNumber)/")
quick(quantized_test)
quick(linear_test)
quick(float8_forward_test)
quick(merge_test "Kernels/Merge.(RandomCases|AnyNumberOfStates|HeadDims|ManyRows|ExtremeLses)/")
quick(append_test "Kernels/(Append.(PagesOfAnySize|RotaryDims|QuantizedCaches)|CopyPages.RandomCases)/")
quick(quantize_test "Kernels/Quantize.(Scales|HadamardOfEveryHeadDim|RowsOfAnyNumbers)/|QuantizeByHand|QuantizeVerdict")
quick(backward_test "BackwardReference|Kernels/Backward.(RandomCases|OnlyWhatIsAskedFor|EmptySizes|AddsToWhatIsThere|AWrongForwardIsCaught)/")

# Kernels of the GPU, emulated, and what is queued for them.
quick(emulator_test)
quick(widened_test)
quick(schedule_test)
quick(emulated_quick_test)
quick(emulated_quick_backward_test)
quick(emulated_quick_others_test)
quick(emulated_ladder_test "Rungs/EmulatedLadder.IsRight/")
quick(emulated_linear_sm80_test "Kernels/EmulatedLinear.(Columns|EveryWeight|NotFinite)/")
quick(emulated_linear_sm90_test "Ways/EmulatedLinearSm90.RandomCases/(HalfWave|Stream|GatedWave|GatedStream)")
quick(emulated_merge_test)
quick(emulated_quantize_test "EmulatedQuantize.HeadDims")
quick(emulated_append_test "EmulatedAppend.RandomCases|EmulatedCopyPages.RandomCases")
quick(emulated_quick_decode_test)
quick(emulated_widened_test "EmulatedWidened.(OddHeadDims|OutAlone)")
quick(emulated_toy_test)
quick(fake_driver_test)
quick(linear_blas_test)
quick(forward_launch_test "ForwardLaunch.(OneKernelWhereMasksAreIntervals|HoppersBlocksStay|TheLadderQueuesItsKernels)")

# The API.
foreach(part api append_api backward_api backward_errors dlpack linear_api merge_api operands paged_cache pages_api plan quantize_api ranges
    errors sharing)
  quick(${part}_test)
endforeach()

# At length.
long(batch_invariant_test ".*RowsKeepTheirBits")
long(decode_launch_test "DecodeLaunch.(QuantizedCaches|OneScheduleServesPlansOfRoundedLengths)")
long(decode_splits_test ".*KeysAtTheirBorders")
long(emulated_append_test EmulatedAppend.HostileTables)
long(emulated_quantize_test "EmulatedQuantize.(HostileTables|ManyRows)")
long(forward_test "Kernels/(Softcaps|PairsOfFeatures|Forward.(BeyondTwoToThe16|GrowingScores|LongerThanAnyTile))")
long(mean_weight_test)
long(merge_test "Kernels/Merge.BitsDependOnTheRowAlone")
long(nan_test "Kernels/Nan.In(Values|QueriesAndKeys)PassesTheCheck")
long(user_source_test Modification)
