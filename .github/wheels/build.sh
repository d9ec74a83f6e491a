#!/usr/bin/env bash
# Builds into dist/ the source distribution, and from it the wheels for Linux that a release has:
#
#   .github/wheels/build.sh [x86_64] [aarch64]      default: both
#
# A wheel is made for each CPython of 3.10 to 3.13 that is found (tests/pythons.sh), and runs on
# glibc 2.28 or later (manylinux_2_28). The compiler is zig's, from PyPI: it builds for any glibc and
# for either processor. Sources that do not include Python's headers are compiled once for each
# processor. The same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/pythons.sh
umask 022
work=$PWD/build/wheels
glibc=2.28
export SOURCE_DATE_EPOCH PYTHONWARNINGS=ignore
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig
[ $# -gt 0 ] || set -- x86_64 aarch64

if [ ! "$work/tools/.done" -nt .github/wheels/requirements.txt ]; then
  rm -rf "$work/tools"
  "${PYTHON:-python3}" -m venv "$work/tools"
  "$work/tools/bin/pip" install -q -r .github/wheels/requirements.txt
  touch "$work/tools/.done"
fi
tools=$work/tools/bin/python
site=$("$tools" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The source distribution, in an order and with times that do not depend on the machine.
rm -rf "$work/source" "$work/sdist" && mkdir -p "$work/source" "$work/sdist" dist
git archive HEAD | tar -x -C "$work/source"
(cd "$work/source" && "$tools" setup.py -q sdist --dist-dir "$work/sdist" --formats tar)
archive=$(basename "$work"/sdist/*.tar)
rm -rf "$work/source" && mkdir "$work/source"
tar -x -f "$work/sdist/$archive" -C "$work/source"
name=${archive%.tar}
tar -c --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  -C "$work/source" "$name" | gzip -9n > "dist/$name.tar.gz"
echo "dist/$name.tar.gz"

# Objects depend on the content of the sources, not on the commit or the time.
objects=$work/objects-$(git ls-tree HEAD fastdata/native setup.py .github/wheels | sha256sum | head -c 12)
find "$work/source" -exec touch -d @0 {} +

cd "$work/source/$name"
for machine in "$@"; do
  for language in cc c++; do
    cat > "$work/$machine-$language" <<END
#!/bin/sh
exec "$tools" -m ziglang $language -target $machine-linux-gnu.$glibc "\$@"
END
    chmod +x "$work/$machine-$language"
  done
  for version in $PYTHONS; do
    interpreter=$(find_python "$version")
    if [ -z "$interpreter" ]; then
      echo "build.sh: no Python $version (set PYTHON${version/./}): no wheel for it" >&2
      continue
    fi
    # CPython's headers are the same on every 64-bit Linux, as far as pybind11 uses them.
    _PYTHON_HOST_PLATFORM=linux-$machine \
    SETUPTOOLS_EXT_SUFFIX=.cpython-${version/./}-$machine-linux-gnu.so \
    PYTHONPATH=$site CC=$work/$machine-cc CXX=$work/$machine-c++ \
    LDSHARED="$work/$machine-cc -shared" LDCXXSHARED="$work/$machine-c++ -shared" LDFLAGS=-Wl,-s \
      "$interpreter" setup.py -q build_ext --build-temp "$objects-$machine" \
      build --build-base "$work/build-$machine-$version" \
      bdist_wheel --plat-name "manylinux_${glibc/./_}_$machine" --dist-dir "$work/made"
    wheel=$(ls "$work"/made/*-cp"${version/./}"-*"$machine".whl)
    shown=$("$tools" -m auditwheel show "$wheel")
    needs=$(grep -om1 'manylinux_2_[0-9]*' <<< "$shown" || true)
    if [ -z "$needs" ] || [ "${needs##*_}" -gt "${glibc#*.}" ]; then
      echo "build.sh: $wheel needs more than glibc $glibc: $shown" >&2
      exit 1
    fi
    mv "$wheel" "$OLDPWD/dist/"
    echo "dist/$(basename "$wheel")"
  done
done
