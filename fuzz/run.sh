#!/bin/sh
# Fuzzes the native core under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   fuzz/run.sh [SECONDS [TARGET]]      default 60, of each: decode, augment
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
if [ $# -lt 2 ]; then
  "$0" "$seconds" decode
  exec "$0" "$seconds" augment
fi
subject=$2
python=${PYTHON:-python3}
work=${WORK:-build/fuzz}
mkdir -p "$work/corpus/$subject" "$work/crashes"

"$python" -c 'import sys; sys.path.insert(0, "."); sys.path.insert(0, "fuzz")
import make_corpus; make_corpus.main(sys.argv[1])' "$work/seeds"

flags="-std=c++20 -O2 -g1 -fno-omit-frame-pointer -ffp-contract=off -Ifastdata/native"
flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=all -DFASTDATA_CHECK_LANES"
sources=$(find fastdata/native -name '*.cpp' ! -path '*/python/*')

clang=${CXX:-}
for name in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
  [ -n "$clang" ] || ! command -v "$name" >/dev/null || clang=$name
done

build() { # compiler, compile flags, link flags, target, the target's own sources
  target=$4
  # The core is compiled once for all targets.
  objects=$work/$(basename "$1").objects
  mkdir -p "$objects"
  linked= stale=
  for source in $sources $5; do
    object=$objects/$(basename "$source" .cpp).o
    linked="$linked $object"
    if [ ! -e "$object" ] || [ -n "$(find "$source" fastdata/native \( -path "$source" \
        -o -name '*.h' \) -newer "$object")" ]; then
      stale="$stale $source $object"
    fi
  done
  # shellcheck disable=SC2086
  printf '%s\n' $stale | xargs -r -n 2 -P "$(nproc)" \
    sh -c "\"\$0\" $flags $2 -c \"\$1\" -o \"\$2\"" "$1"
  # shellcheck disable=SC2086
  "$1" $flags $3 $linked -o "$target" -lpthread
}

case "$clang" in
*clang*)
  # Edge counters only: tracing comparisons, libFuzzer's default, halves the speed.
  build "$clang" -fsanitize-coverage=inline-8bit-counters,pc-table -fsanitize=fuzzer \
    "$work/fuzz_$subject" "fuzz/fuzz_$subject.cpp"
  exec "$work/fuzz_$subject" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/crashes/" \
    "$work/corpus/$subject" "$work/seeds/$subject"
  ;;
*)
  build "${CXX:-g++}" "" "" "$work/blind_$subject" "fuzz/fuzz_$subject.cpp fuzz/driver.cpp"
  # shellcheck disable=SC2086
  exec ${RUN:-} "$work/blind_$subject" "$seconds" "$work/seeds/$subject"/*
  ;;
esac
