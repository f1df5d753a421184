#!/bin/bash
# usage: bundle.sh BUILD FOLDER [PROGRAM...]    Collects the library, what it needs, the tests, the command line and the
# benchmarks in one folder that runs on a machine without Highway and oneTBB: every program looks for libraries beside
# itself. PROGRAM: these alone, by name; tests/gpu/gpu.sh wants api_test append_test backward_api_test backward_test batch_invariant_test cancel_test
# example_decode_server example_decoder forward_test gpu_api_test gpu_append_test gpu_backward_test gpu_decode_test gpu_launch_test gpu_schedule_test gpu_stress_test gpu_test hostile_test linear_api_test linear_test
# leftpad_test mean_weight_test merge_test nan_test quantized_test float8_forward_test errors_test score_size_test sharing_test upper_halves_test random_test.
set -euo pipefail
build=$1 folder=$2 wanted=" ${*:3} " source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder"

library=$(find "$build" -name libtessella.so -exec readlink -f {} + | head -1)
soname=$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')
install -m 755 -s "$library" "$folder/$soname"
ln -sf "$soname" "$folder/libtessella.so"
operators=$(dirname "$library")/libtessella_torch.so
if [[ -f $operators ]]; then
  install -m 755 -s "$operators" "$folder"
else
  rm -f "$folder/libtessella_torch.so"
  echo "note: without libtessella_torch.so torch's operators run in Python, which takes the host far longer" >&2
fi
programs=$(find "$build" -path '*CMakeFiles*' -prune -o -type f -perm -u+x -print |
  while read -r file; do case $(file -b "$file") in *ELF*executable*|*ELF*interpreter*) echo "$file" ;; esac; done)
if [[ $wanted != *[a-z]* ]]; then wanted=; fi
programs=$(for program in $programs; do
  if [[ -z $wanted || $wanted == *" $(basename "$program") "* ]]; then echo "$program"; fi
done)
for program in $programs; do install -m 755 -s "$program" "$folder"; done

# Private dependencies, by the names the loader asks for. oneTBB opens its allocator by name if it lies there.
ldd "$library" $programs | awk '/lib(hwy|tbb|fmt|zip|bz2|crypto|gtest)[^ ]*\.so/ && $3 ~ /^\// {print $1, $3}' | sort -u |
  while read -r name path; do install -m 755 "$(readlink -f "$path")" "$folder/$name"; done
cp "$source"/bench/*.py "$source/tests/gpu/gpu.sh" "$source/examples/decoder/decoder_test.py" "$folder"
# For compare.py and python/tests: TESSELLA_LIBRARY=libtessella.so PYTHONPATH=python.
rm -rf "${folder:?}/contest" "${folder:?}/python"
mkdir "$folder/python"
cp -r "$source/bench/contest" "$folder"
cp -r "$source/bindings/python/tessella" "$source/bindings/python/tests" "$folder/python"

for file in "$folder/$soname" $(for p in $programs; do echo "$folder/$(basename "$p")"; done); do
  if ! readelf -d "$file" | grep -q 'RUNPATH.*\$ORIGIN'; then echo "note: $(basename "$file") needs LD_LIBRARY_PATH" >&2; fi
done
size=$(du -sm "$folder" | cut -f1)
echo "$folder: $(find "$folder" -type f | wc -l) files, $size MiB"
[[ $size -le 60 ]] || { echo "more than 60 MiB" >&2; exit 1; }
