#!/bin/sh
# Builds the native core for aarch64 and runs its tests under emulation, on x86-64 Debian.
#
#   tests/aarch64.sh [pytest's arguments]      default: the native core's tests
#
# Needs apt, dpkg, g++-aarch64-linux-gnu, qemu-user; and pip
# (PYTHON). Debian's arm64 Python and the packages' aarch64 wheels are unpacked under
# build/aarch64; nothing is installed, no architecture added. Correctness, not speed: an
# emulated test takes ten times as long.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
work=$PWD/build/aarch64
root=$work/root

compiler=aarch64-linux-gnu-g++
[ -z "${WHEEL:-}" ] || compiler= # a wheel needs none
for tool in $compiler qemu-aarch64 apt-get dpkg; do
  command -v "$tool" >/dev/null || {
    echo "$0: no $tool: apt-get install${compiler:+ g++-aarch64-linux-gnu} qemu-user (on Debian)" >&2
    exit 1
  }
done

# An apt that knows of nothing installed: it fetches Python with all that Python needs.
if [ ! -e "$root/.done" ]; then
  rm -rf "$root" "$work/apt"
  mkdir -p "$root" "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/state"
  : >"$work/apt/status"
  # shellcheck source=/dev/null
  . /etc/os-release
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [arch=arm64 signed-by=$keyring] $mirror $VERSION_CODENAME main" >"$work/apt/sources"
  cat >"$work/apt/conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/status";
Dir::State::Lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
Dir::Etc::SourceList "$work/apt/sources";
Dir::Etc::SourceParts "/dev/null";
CONF
  APT_CONFIG=$work/apt/conf apt-get -qq update
  APT_CONFIG=$work/apt/conf apt-get -qq --download-only install python3 libpython3-dev libstdc++6
  for package in "$work"/apt/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  [ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
  touch "$root/.done"
fi

version=$(readlink "$root/usr/bin/python3")
version=${version#python}

if [ ! -e "$work/site/.done" ]; then
  rm -rf "$work/site"
  "$python" -m pip install -q --target "$work/site" --no-compile --only-binary=:all: \
    --implementation cp --python-version "$version" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    setuptools pybind11 numpy pillow pyarrow lmdb click rich pytest pytest-timeout hypothesis
  touch "$work/site/.done"
fi

# An interpreter like any other, also for the tests that start one.
cat >"$work/python" <<WRAPPER
#!/bin/sh
export PYTHONHOME=$root/usr PYTHONPATH=$work/site:$PWD\${PYTHONPATH:+:\$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
exec qemu-aarch64 -0 "\$0" -L "$root" "$root/usr/bin/python$version" "\$@"
WRAPPER
chmod +x "$work/python"

# With WHEEL=1, what is tested is the extension in dist/'s wheel, not one that is built here.
if [ -n "${WHEEL:-}" ]; then
  wheel=$(ls dist/*-cp"$(echo "$version" | tr -d .)"-*aarch64.whl)
  unzip -qo "$wheel" 'fastdata/_native.*' -d .
else
# The compiler is the host's; the headers are the unpacked Python's, behind its own.
compiler="aarch64-linux-gnu-g++ -idirafter $root/usr/include"
CC=$compiler CXX=$compiler LDSHARED="aarch64-linux-gnu-g++ -shared" \
  LDCXXSHARED="aarch64-linux-gnu-g++ -shared" \
  "$work/python" setup.py -q build_ext --inplace --build-temp "$work/objects" \
  --include-dirs "$root/usr/include/python$version"
fi

"$work/python" -c 'from fastdata import _native; import platform
print("emulated", platform.machine() + ":", ", ".join(_native.simd_levels()))'
[ $# -gt 0 ] || set -- tests/test_native_*.py tests/test_decode.py
# The tests left out fork a process of many threads, or limit its memory: qemu itself aborts.
exec "$work/python" -m pytest -q -p no:cacheprovider -o timeout=0 -o faulthandler_timeout=0 \
  --deselect tests/test_decode.py::test_fork_while_batches_run \
  --deselect tests/test_decode.py::test_more_threads_than_the_system_gives_are_an_error "$@"
