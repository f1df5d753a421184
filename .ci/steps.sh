# Sourced by run and full: step NAME COMMAND... runs one, goes on after a failure, and finish says how many there were.

# Tests that sanitizers leave out: those that compile device code, which is not ours to sanitize, and the longest, for
# whose cases random ones or those of another instruction set stand. ctest knows at most nine groups in an expression.
NOT_SANITIZED='^random_test|^kernel_matrix_test|^user_source_test'
NOT_SANITIZED+='|PairsOfFeatures\.|Softcaps\.|MeanWeight\.|Forward\.BeyondTwoToThe16|Forward\.GrowingScores'
NOT_SANITIZED+='|(Forward|Backward|Nan)\..*/reference_(safe|online|one_pass|flash|standard)'
NOT_SANITIZED+='|BatchInvariant\..*/(reference|cpu_.*_baseline|cpu_.*_sse4)|Nan\..*/cpu_.*_(baseline|sse4|avx2)'
NOT_SANITIZED+='|DecodeSplits\..*/cpu_decode_(baseline|sse4|avx2)|Quantized\..*/cpu_decode_(baseline|sse4)'

num_passed=0 num_failed=0 failures=()

step() {
  local name=$1 start=$SECONDS
  shift
  echo "=== $name"
  if "$@"; then
    num_passed=$((num_passed + 1))
    echo "--- $name: passed in $((SECONDS - start)) s"
  else
    num_failed=$((num_failed + 1))
    failures+=("$name")
    echo "--- $name: FAILED after $((SECONDS - start)) s"
  fi
}

# The last line is the tally; the exit status says whether all passed.
finish() {
  for name in "${failures[@]}"; do echo "failed: $name"; done
  echo "total $SECONDS s"
  echo "$num_passed passed, $num_failed failed"
  [[ $num_failed -eq 0 ]]
}

# configure_and_build PRESET [arguments of cmake --build]
configure_and_build() {
  local preset=$1
  shift
  mkdir -p build && cmake --preset "$preset" >"build/$preset.log" 2>&1 && cmake --build --preset "$preset" "$@" >>"build/$preset.log" 2>&1 ||
    { tail -n 60 "build/$preset.log"; return 1; }
}
