#!/bin/sh
# Fuzzes the native core under AddressSanitizer and UndefinedBehaviorSanitizer. Campaigns of tests
# (make campaign) damage datasets and sources.
#
#   fuzz/run.sh [SECONDS [TARGET...]]      default 60 in all, for all but threads, in equal shares
#
#   decode    any bytes as an image's header, as a JPEG, its seek points and a request; the SIMD levels agree
#   outlines  any polygons and run lengths, cut: the pixels are those of the whole mask
#   png       any bytes as a PNG's inflated rows
#   index     any bytes as rows of an index, and as the samples that they point to
#   oracle    the pixels are libjpeg-turbo's, where it decodes without a warning; needs its headers
#   threads   the engine's threads, with batches that fail or are cancelled: under ThreadSanitizer
#
# Uses clang's libFuzzer if there is one (CXX, else clang++ or clang++-NN), else the blind
# driver with g++. Needs Python with the built package, Pillow and numpy for the seeds
# (PYTHON). Leaves the corpus, build and crashes under build/fuzz (WORK), so that a corpus grows; starts
# from the one in fuzz/corpus. RUN is put before the blind driver's command; for aarch64, emulated:
#
#   CXX=aarch64-linux-gnu-g++ RUN="qemu-aarch64 -L /usr/aarch64-linux-gnu" WORK=build/fuzz-aarch64 \
#     ASAN_OPTIONS=detect_leaks=0 fuzz/run.sh 60 decode index
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
if [ $# -ne 1 ]; then
  [ $# -gt 0 ] || set -- decode outlines png index oracle
  count=$#
  for target; do
    "$0" $(((seconds + count - 1) / count)) "$target"
  done
  exit
fi
subject=$1
python=${PYTHON:-python3}
work=${WORK:-build/fuzz}

clang=${CXX:-}
for name in clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
  [ -n "$clang" ] || ! command -v "$name" >/dev/null || clang=$name
done
compiler=${clang:-g++}

# Small inputs: most findings need few bytes, and time grows with their number.
inputs=$subject sanitizers=address,undefined libraries= longest=2048
case "$subject" in
threads) inputs=decode sanitizers=thread ;;
outlines) longest=384 ;;
oracle)
  inputs=decode libraries=-ljpeg
  if ! printf '#include <cstdio>\n#include <jpeglib.h>\nint main() {}\n' |
    "$compiler" -x c++ - -ljpeg -o /dev/null 2>/dev/null; then
    echo "fuzz oracle: skipped, as libjpeg-turbo's headers are not here: apt-get install libjpeg62-turbo-dev"
    exit
  fi
  ;;
esac
mkdir -p "$work/corpus/$inputs" "$work/crashes" "fuzz/corpus/$inputs"

made=$work/seeds/.made
if [ ! -e "$made" ] || [ -n "$(find fuzz/make_corpus.py tests/jpegs.py tests/scans.py \
    fastdata/_native.*.so -newer "$made")" ]; then
  "$python" -c 'import sys; sys.path.insert(0, "."); sys.path.insert(0, "fuzz")
import make_corpus; make_corpus.main(sys.argv[1])' "$work/seeds"
  touch "$made"
fi

flags="-std=c++20 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -Ifastdata/native"
flags="$flags -fsanitize=$sanitizers -fno-sanitize-recover=all -DFASTDATA_CHECK_LANES"
sources=$(find fastdata/native -name '*.cpp' ! -path '*/python/*')

build() { # compile flags, link flags, target, the target's own sources
  target=$3
  # The core is compiled once for all targets with the same sanitizers.
  objects=$work/$(basename "$compiler").$sanitizers
  mkdir -p "$objects"
  own= core= stale=
  for source in $sources $4; do
    object=$objects/$(basename "$source" .cpp).o
    case $source in
    fuzz/*) own="$own $object" ;;
    *) core="$core $object" ;;
    esac
    if [ ! -e "$object" ] || [ -n "$(find "$source" fastdata/native \( -path "$source" \
        -o -name '*.h' \) -newer "$object")" ]; then
      stale="$stale $source $object"
    fi
  done
  # shellcheck disable=SC2086
  printf '%s\n' $stale | xargs -r -n 2 -P "$(nproc)" \
    sh -c "\"\$0\" $flags $1 -c \"\$1\" -o \"\$2\"" "$compiler"
  # An archive: only what a target uses is linked, and counted in its coverage, which libFuzzer goes
  # through after each execution.
  rm -f "$objects/core.a"
  # shellcheck disable=SC2086
  ar rcs "$objects/core.a" $core
  # shellcheck disable=SC2086
  "$compiler" $flags $2 $own "$objects/core.a" -o "$target" $libraries -lpthread
}

case "$subject.$compiler" in
threads.*)
  build "" "" "$work/threads" "fuzz/threads.cpp"
  exec "$work/threads" "$seconds" "$work/seeds/$inputs"/*
  ;;
*clang*)
  # Edge counters only: tracing comparisons, libFuzzer's default, halves the speed.
  build "-fsanitize-coverage=inline-8bit-counters,pc-table" -fsanitize=fuzzer \
    "$work/fuzz_$subject" "fuzz/fuzz_$subject.cpp"
  # For speed: freed memory is soon used again, which keeps it in the cache, is not filled, and has
  # no stack of its allocation (run the input of a crash without these options). libFuzzer's choice
  # of inputs by their rarity (-entropic) takes a third of the time.
  ASAN_OPTIONS="quarantine_size_mb=2:malloc_context_size=0:max_malloc_fill_size=0:${ASAN_OPTIONS:-}" \
    "$work/fuzz_$subject" -max_total_time="$seconds" -max_len="$longest" -timeout=10 -entropic=0 \
    -reload=0 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/crashes/" \
    "$work/corpus/$inputs" "fuzz/corpus/$inputs" "$work/seeds/$inputs" >"$work/$subject.log" 2>&1 || {
    status=$?
    tail -60 "$work/$subject.log"
    exit $status
  }
  awk -v target="$subject" '
    /PC tables/ { edges = $(NF - 1); sub(/.*\(/, "", edges) }
    /DONE/ { for (i = 1; i < NF; i++) if ($i == "cov:") covered = $(i + 1) }
    /number_of_executed_units/ { runs = $2 }
    /stat::(compared|refused)/ { more = more "; " substr($1, 7) " " $2 }
    END { printf "fuzz %s: %d executions, %d of %d edges (%d%%)%s\n", target, runs, covered, edges,
          100 * covered / edges, more }' "$work/$subject.log"
  ;;
*)
  build "" "" "$work/blind_$subject" "fuzz/fuzz_$subject.cpp fuzz/driver.cpp"
  # shellcheck disable=SC2086
  exec ${RUN:-} "$work/blind_$subject" "$seconds" "$work/seeds/$inputs"/*
  ;;
esac
