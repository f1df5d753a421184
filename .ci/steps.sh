# Sourced by run and full: step NAME COMMAND... runs one, goes on after a failure, and finish says how many there were.

# Tests that sanitizers leave out: those that compile device code, which is not ours to sanitize, and the longest, for
# whose cases random ones or those of another instruction set stand. ctest knows at most nine groups in an expression.
NOT_SANITIZED='^random_test|^user_source_test'
NOT_SANITIZED+='|PairsOfFeatures\.|Softcaps\.|MeanWeight\.|Forward\.BeyondTwoToThe16|Forward\.GrowingScores'
NOT_SANITIZED+='|(Forward|Backward|Nan)\..*/reference_(safe|online|one_pass|flash|standard)'
NOT_SANITIZED+='|BatchInvariant\..*/(reference|cpu_.*_baseline|cpu_.*_sse4)|Nan\..*/cpu_.*_(baseline|sse4|avx2)'
NOT_SANITIZED+='|DecodeSplits\..*/cpu_decode_(baseline|sse4|avx2)|Quantized\..*/cpu_decode_(baseline|sse4)'

# Tests at many sizes, spreads and schedules: each commit's run takes the next share of five, so that five commits in a
# row run all. share OF: this commit's, of its number in the history, or of its time where the history is cut.
share() {
  if [[ $(git rev-parse --is-shallow-repository) == false ]]; then
    echo $(($(git rev-list --count HEAD) % $1))
  else
    echo $(($(git log -1 --format=%ct) % $1))
  fi
}
SHARES=5
EMULATED_SHARES=(
  'emulated_forward_test emulated_softcap_test emulated_random_decode_test'
  'emulated_forward_sm90_test'
  'emulated_forward_sm90_masks_test emulated_mask_map_test'
  'emulated_quantized_decode_test emulated_backward_test'
  'emulated_decode_test emulated_mla_test emulated_standard_backward_test'
)
# These have tests that mutations of a kernel rely on (tests/emulator/mutations.py).
EMULATED_ALWAYS='emulated_backward_sm90_test emulated_short_rows_test'

num_passed=0 num_failed=0 failures=() times=()

# step NAME COMMAND... runs one and keeps what it prints in build/steps. Wants pipefail.
step() {
  local name=$1 start=$SECONDS
  shift
  echo "=== $name"
  mkdir -p build/steps
  if "$@" 2>&1 | tee "build/steps/$name.log"; then
    num_passed=$((num_passed + 1))
    echo "--- $name: passed in $((SECONDS - start)) s"
  else
    num_failed=$((num_failed + 1))
    failures+=("$name")
    echo "--- $name: FAILED after $((SECONDS - start)) s"
  fi
  times+=("$(printf '%7d s  %s' $((SECONDS - start)) "$name")")
}

# The times of the steps, the ends of what failed, and as the last line the tally; the exit status says whether all
# passed.
finish() {
  printf '%s\n' "${times[@]}"
  for name in "${failures[@]}"; do
    echo "failed: $name, whose output ended in"
    grep -v '(Skipped)$' "build/steps/$name.log" | tail -n 60
  done
  echo "total $SECONDS s"
  echo "$num_passed passed, $num_failed failed"
  [[ $num_failed -eq 0 ]]
}

# in_parts NAME COMMAND...: one of gtest's binaries in many parts, as many at once as there are cores; prints what fails
# and how many tests there were.
in_parts() {
  local name=$1 parts=$((4 * CMAKE_BUILD_PARALLEL_LEVEL)) status=0
  shift
  rm -f "build/$name"-*.log
  # shellcheck disable=SC2016
  seq 0 $((parts - 1)) | GTEST_TOTAL_SHARDS=$parts xargs -P "$CMAKE_BUILD_PARALLEL_LEVEL" -I PART env GTEST_SHARD_INDEX=PART \
    bash -c 'log=build/$0-$GTEST_SHARD_INDEX.log; timeout 1800 "$@" >"$log" 2>&1 || { tail -n 60 "$log"; exit 1; }' "$name" "$@" || status=1
  cat "build/$name"-*.log | awk -v name="$name" '$1 == "[" && $3 == "]" && $5 ~ /^tests?[.,]/ { count[$2] += $4 }
    END { printf "%s: %d passed, %d skipped, %d failed\n", name, count["PASSED"], count["SKIPPED"], count["FAILED"]
          exit count["PASSED"] + count["SKIPPED"] == 0 }' || status=1
  return $status
}

# suites FOLDER NAME...: builds suites of the emulator, or others that are built when asked for by name, and runs them.
suites() {
  local folder=$1 suite status=0
  shift
  cmake --build "$folder" --target "$@" >build/suites.log 2>&1 || { tail -n 60 build/suites.log; return 1; }
  for suite in "$@"; do in_parts "$suite" "$(find "$folder/tests" -type f -name "$suite")" || status=1; done
  return $status
}

# The ten sources that took longest to compile, in seconds on the clock.
report_sources() {
  echo "slowest sources:"
  awk '/\.o\t/ { printf "%7.1f s  %s\n", ($2 - $1) / 1000, $4 }' "$@" | sort -rn | head -n 10
}

# configure_and_build PRESET [arguments of cmake --build]
configure_and_build() {
  local preset=$1
  shift
  mkdir -p build && cmake --preset "$preset" >"build/$preset.log" 2>&1 && cmake --build --preset "$preset" "$@" >>"build/$preset.log" 2>&1 ||
    { tail -n 60 "build/$preset.log"; return 1; }
}
