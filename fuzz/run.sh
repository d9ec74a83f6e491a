#!/bin/sh
# Fuzzes the native core under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   fuzz/run.sh [SECONDS]      default 60
#
# Uses clang's libFuzzer if there is one (CXX, else clang++ or clang++-NN), else the blind
# driver with g++. Needs Python with the built package, Pillow and numpy for the seeds
# (PYTHON). Leaves the corpus, build and crashes under build/fuzz (WORK). RUN is put before the
# blind driver's command; for aarch64, emulated:
#
#   CXX=aarch64-linux-gnu-g++ RUN="qemu-aarch64 -L /usr/aarch64-linux-gnu" WORK=build/fuzz-aarch64 \
#     ASAN_OPTIONS=detect_leaks=0 fuzz/run.sh
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
python=${PYTHON:-python3}
work=${WORK:-build/fuzz}
mkdir -p "$work/corpus" "$work/crashes"

"$python" -c 'import sys; sys.path.insert(0, "."); sys.path.insert(0, "fuzz")
import make_corpus; make_corpus.main(sys.argv[1])' "$work/seeds"

flags="-std=c++20 -O2 -g1 -fno-omit-frame-pointer -ffp-contract=off -Ifastdata/native"
flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=all -DFASTDATA_CHECK_LANES"
sources=$(find fastdata/native -name '*.cpp' ! -path '*/python/*')

clang=${CXX:-}
for name in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
  [ -n "$clang" ] || ! command -v "$name" >/dev/null || clang=$name
done

build() { # compiler, compile flags, link flags, target, sources
  target=$4
  if [ ! -e "$target" ] || [ -n "$(find fastdata/native fuzz -name '*.cpp' -newer "$target" \
      -o -name '*.h' -newer "$target")" ]; then
    mkdir -p "$target.objects"
    for source in $sources $5; do
      # shellcheck disable=SC2086
      "$1" $flags $2 -c "$source" -o "$target.objects/$(basename "$source" .cpp).o"
    done
    # shellcheck disable=SC2086
    "$1" $flags $3 "$target.objects"/*.o -o "$target" -lpthread
  fi
}

case "$clang" in
*clang*)
  # Edge counters only: tracing comparisons, libFuzzer's default, halves the speed.
  build "$clang" -fsanitize-coverage=inline-8bit-counters,pc-table -fsanitize=fuzzer \
    "$work/fuzz_decode" fuzz/fuzz_decode.cpp
  exec "$work/fuzz_decode" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/crashes/" \
    "$work/corpus" "$work/seeds"
  ;;
*)
  build "${CXX:-g++}" "" "" "$work/fuzz_blind" "fuzz/fuzz_decode.cpp fuzz/driver.cpp"
  # shellcheck disable=SC2086
  exec ${RUN:-} "$work/fuzz_blind" "$seconds" "$work"/seeds/*
  ;;
esac
