#!/usr/bin/env bash
# Builds one test program with g++ and prints its path: bash build.sh PROGRAM [--tsan | --asan | --ucontext] [--bug N]
# PROGRAM: fuzz (dispatch and combine), emulator (the emulator's own tests), library (errors, deadlines, formats).
# CXX names another compiler, BUILD another folder than kernels/build.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1 bug=0 flavour=plain
shift
while [ $# -gt 0 ]; do
  case $1 in
    --tsan | --asan | --ucontext) flavour=${1#--} ;;
    --bug) bug=$2 && shift ;;
    *) echo "build.sh: $1 is not an option" >&2 && exit 2 ;;
  esac
  shift
done
flags=(-std=c++20 -O2 -Wall -Wextra -Werror -Iinclude -Iemulator -Iemulator/shim)
runtime=("${flags[@]}") kernel=("${flags[@]}" -DMOX_BUG="$bug") link=(-rdynamic)
case $flavour in
  tsan)  # the emulator itself stays uninstrumented: only the program under test is watched
    runtime+=(-DEMU_TSAN) && kernel+=(-DEMU_TSAN -g -fsanitize=thread) && link+=(-fsanitize=thread) ;;
  ucontext) runtime+=(-DEMU_UCONTEXT) ;;  # fibers as on machines that fiber.cc has no assembly for
  asan)
    runtime+=(-g -fsanitize=address) && kernel+=(-g -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    link+=(-fsanitize=address,undefined) ;;
esac
out=${BUILD:-build}/$flavour
common=$out/bug0 mine=$out/bug$bug
mkdir -p "$common" "$mine"
newest=$(find include src emulator tests -type f -printf '%T@ %p\n' | sort -rn | head -1 | cut -d' ' -f2-)
compile() {  # OBJECT SOURCE FLAGS...: only when something is newer
  local object=$1 source=$2
  shift 2
  if [ ! "$object" -nt "$newest" ]; then
    "${CXX:-g++}" "$@" -x c++ -c "$source" -o "$object.$$" && mv "$object.$$" "$object"
  fi
}
objects=()
for f in fiber scheduler blocks network; do
  compile "$common/$f.o" emulator/$f.cc "${runtime[@]}"
  objects+=("$common/$f.o")
done
plain=(shape:src/shape.cc)
if [ "$program" != emulator ]; then plain+=(case:tests/case.cc reference:tests/reference.cc); fi
for f in "${plain[@]}"; do
  compile "$common/${f%%:*}.o" "${f#*:}" "${flags[@]}"
  objects+=("$common/${f%%:*}.o")
done
compile "$mine/alltoall.o" src/alltoall.cu "${kernel[@]}"
objects+=("$mine/alltoall.o")
compile "$common/$program.o" "tests/$program.cc" "${kernel[@]}"
objects+=("$common/$program.o")
if [ ! "$mine/$program" -nt "$newest" ]; then
  "${CXX:-g++}" "${objects[@]}" "${link[@]}" -o "$mine/$program.$$" && mv "$mine/$program.$$" "$mine/$program"
fi
realpath "$mine/$program"
