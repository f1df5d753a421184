#!/bin/bash
# usage: gpu.sh FOLDER [PART...]    Every test of the GPU's kernels. FOLDER is a build folder or what bench/bundle.sh made.
#
#   suites     the suites' tests of kernels named cuda.*, each in a process of its own, as many at once as there are cores
#   random     20000 random cases a kernel (CASES), after all that they need is compiled
#   linear     as many of each kernel of linear
#   examples   the decode server's tokens, compared with attention without a cache, and the decoder's, with plain Python
#   sanitizer  hostile tables, odd sizes and random cases under compute-sanitizer, if it is there
#
# All of them where none is named. KERNEL=cuda.forward_sm90 takes that kernel's tests alone. A test may take
# SECONDS_A_TEST (300); TESSELLA_TEST_REPEATS (1000) is how often backward must give the same bits, TESSELLA_TEST_CALLS
# (100000) how often forward must, under load. Output of what fails is printed; the last line is "N passed, N failed".
set -uo pipefail
folder=$(cd "${1:?usage: gpu.sh FOLDER [suites|random|linear|examples|sanitizer]...}" && pwd) || exit 2
shift
parts=${*:-suites random linear examples sanitizer}
export KERNEL=${KERNEL:-} SECONDS_A_TEST=${SECONDS_A_TEST:-300}
jobs=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0 failed=0 skipped=0

program() {
  local at
  for at in "$folder/$1" "$folder/tests/$1" "$folder/examples/$1"; do
    [[ -x $at ]] && echo "$at" && return
  done
  echo "gpu.sh: $folder has no $1" >&2
  return 1
}

# Beside the programs of a bundle, or in the source folder.
decoder_test() { ls "$folder/decoder_test.py" "$(dirname "$0")/../../examples/decoder/decoder_test.py" 2>/dev/null | head -n 1; }

count() { # count NAME STATUS LOG
  if [[ $2 -ne 0 ]]; then
    failed=$((failed + 1))
    echo "FAILED $1 (exit status $2)"
    tail -n 40 "$3"
  elif grep -qE '^\[  SKIPPED \]|^OK \(skipped=' "$3"; then
    skipped=$((skipped + 1))
    grep -m1 -A1 'Skipped$' "$3" | tail -n 1 | sed "s|^|skipped $1: |"
  else
    passed=$((passed + 1))
  fi
}

# "PROGRAM TEST" of every test whose name speaks of the GPU.
gpu_tests() {
  local suite at
  for suite in api_test append_test backward_api_test backward_test batch_invariant_test cancel_test forward_test gpu_api_test gpu_append_test \
    gpu_backward_test gpu_decode_test gpu_launch_test gpu_schedule_test gpu_stress_test gpu_test hostile_test leftpad_test \
    linear_api_test linear_test mean_weight_test merge_test nan_test quantize_test quantized_test float8_forward_test errors_test \
    score_size_test sharing_test upper_halves_test; do
    at=$(program "$suite") || { echo "missing $suite"; continue; }
    "$at" --gtest_list_tests | awk -v at="$at" -v kernel="${KERNEL//./_}" '
      /^[^ ]/ { group = $1 }
      /^ / { name = group $1; if (name ~ (kernel ? kernel "$" : "/cuda_|Gpu")) print at, name }'
  done
}

run_suites() {
  gpu_tests >"$logs/list"
  if [[ ! -s $logs/list ]]; then
    echo "FAILED: no test of the GPU in $folder"
    failed=$((failed + 1))
    return
  fi
  export logs
  # shellcheck disable=SC2016
  nl -ba "$logs/list" | xargs -P "$jobs" -L 1 bash -c '
    one_at_a_time=()  # those that take most of the memory of a GPU
    [[ $2 == *BeyondTwoToThe31Elements* ]] && one_at_a_time=(flock "$logs/lock")
    "${one_at_a_time[@]}" timeout "$SECONDS_A_TEST" "$1" --gtest_filter="$2" >"$logs/$0.log" 2>&1
    echo $? >"$logs/$0.status"'
  local number at name
  while read -r number at name; do
    count "$(basename "$at") $name" "$(cat "$logs/$number.status")" "$logs/$number.log"
  done < <(nl -ba "$logs/list")
}

run_random() {
  local at kernel
  at=$(program random_test) || return
  for kernel in $("$at" --list-configs | sed -n 's/^kernel=\(cuda\.[^ ]*\).*/\1/p' | sort -u); do
    [[ -z $KERNEL || $kernel == "$KERNEL" ]] || continue
    "$at" --kernel "$kernel" --compile-only --jobs "$jobs" >"$logs/random" 2>&1
    "$at" --kernel "$kernel" --cases "${CASES:-20000}" --jobs "$jobs" >>"$logs/random" 2>&1
    count "random_test $kernel" $? "$logs/random"
    tail -n 1 "$logs/random" | sed "s|^|random_test $kernel: |"
    [[ $kernel == cuda.decode ]] || continue
    for of in --quantized --mla; do
      "$at" --kernel "$kernel" $of --max-configs 16 --cases "${CASES:-20000}" --jobs "$jobs" >"$logs/random" 2>&1
      count "random_test $kernel $of" $? "$logs/random"
      tail -n 1 "$logs/random" | sed "s|^|random_test $kernel $of: |"
    done
  done
}

run_linear() {
  local at kernel
  at=$(program random_test) || return
  for kernel in cuda.linear_gemv cuda.linear_sm80 cuda.linear_sm90; do
    [[ -z $KERNEL || $kernel == "$KERNEL" ]] || continue
    "$at" --linear --kernel "$kernel" --cases "${CASES:-20000}" --jobs "$jobs" >"$logs/random" 2>&1
    count "random_test --linear $kernel" $? "$logs/random"
    tail -n 1 "$logs/random" | sed "s|^|random_test --linear $kernel: |"
  done
}

run_examples() {
  local at
  [[ -z $KERNEL ]] || return
  at=$(program example_decode_server) || return
  timeout "$SECONDS_A_TEST" "$at" --device cuda >"$logs/example" 2>&1
  count "example_decode_server --device cuda" $? "$logs/example"
  at=$(program example_decoder) || return
  timeout "$SECONDS_A_TEST" python3 -B "$(decoder_test)" "$at" cuda >"$logs/example" 2>&1
  count "example_decoder on a GPU" $? "$logs/example"
}

run_sanitizer() {
  local checker
  checker=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
  if [[ -z $checker ]]; then
    echo "skipped: no compute-sanitizer here"
    skipped=$((skipped + 1))
    return
  fi
  checked() { # checked TOOL PROGRAM ARGUMENTS...
    local tool=$1 at
    at=$(program "$2") || return
    "$checker" --tool "$tool" --error-exitcode 9 "$at" "${@:3}" >"$logs/checked" 2>&1
    local status=$?
    [[ $status -ne 0 ]] && grep '^=========' "$logs/checked" | sed -n '2,8p'  # the first complaint
    count "$tool ${*:2}" $status "$logs/checked"
  }
  local kernel of=${KERNEL//./_}
  of=${of:-cuda_}
  checked memcheck hostile_test --gtest_filter="*/$of*"
  checked memcheck forward_test --gtest_filter="*.OddSizes/$of*:*.EmptySizes/$of*:*.HeadDims/$of*:*.Layouts/$of*"
  local small="*.Plain/$of*:*.RowsWithoutAKey/$of*:*.LongerThanAnyTile/$of*"
  checked synccheck forward_test --gtest_filter="$small"
  for kernel in cuda.decode cuda.decode_unified_max cuda.forward_sm80 cuda.forward_sm90 cuda.backward_sm80 cuda.backward_sm90; do
    [[ -z $KERNEL || $kernel == "$KERNEL" ]] || continue
    checked memcheck random_test --kernel $kernel --cases 300 --jobs 4
    checked synccheck random_test --kernel $kernel --cases 60
    [[ $kernel == cuda.decode ]] && checked memcheck random_test --kernel $kernel --quantized --max-configs 8 --cases 200 --jobs 4
    [[ $kernel == cuda.decode ]] && checked memcheck random_test --kernel $kernel --mla --max-configs 8 --cases 100 --jobs 4
  done
  # racecheck does not know what the copy engine's barriers order.
  [[ $KERNEL == cuda.*_sm90 ]] && return
  checked racecheck forward_test --gtest_filter="$small-*sm90*"
  for kernel in cuda.decode cuda.forward_sm80 cuda.backward_sm80; do
    [[ -z $KERNEL || $kernel == "$KERNEL" ]] || continue
    checked racecheck random_test --kernel $kernel --cases 60
    [[ $kernel == cuda.decode ]] && checked racecheck random_test --kernel $kernel --quantized --max-configs 8 --cases 60
    [[ $kernel == cuda.decode ]] && checked racecheck random_test --kernel $kernel --mla --max-configs 8 --cases 30
  done
}

for part in $parts; do
  case $part in
    suites) run_suites ;;
    random) run_random ;;
    linear) run_linear ;;
    examples) run_examples ;;
    sanitizer) run_sanitizer ;;
    *) echo "gpu.sh: $part is no part, expected suites, random, linear, examples or sanitizer" >&2 && exit 2 ;;
  esac
done
[[ $skipped -gt 0 ]] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 && $passed -gt 0 ]]
