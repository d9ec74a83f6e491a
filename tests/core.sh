#!/usr/bin/env bash
# Run the tests that need no torch in environments that have none:
#   core.sh 3.12 3.13   on these Pythons, with the newest libraries
#   core.sh oldest      on Python 3.10, with the oldest libraries that setup.cfg allows
# A Python is $PYTHON310 (or 312, 313), else pyenv's, else python3.10; one that is not found is
# skipped. Environments are kept in .venvs/.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# What another Python or library could change; not what tests the same C++ or is slow.
core=(checksum decode functions index lmdb manifest packing parquet probe shards storage verify)
skipped="real or memory or ranges or interrupted or large or killed"

. tests/pythons.sh

requirements() {  # PYTHON OLDEST: what setup.cfg asks for, one a line
  "$1" - "$2" <<'END'
import configparser, sys
config = configparser.ConfigParser()
config.read("setup.cfg")
extras = config["options.extras_require"]
wanted = config["options"]["install_requires"] + extras["imagenet"] + extras["test"]
print(wanted.replace(" >= ", "==" if sys.argv[1] == "oldest" else ">="))
END
}

# The package as setup.cfg maps it, without a build for each environment.
rm -rf build/core && mkdir -p build/core/fastdata
ln -s "$root"/fastdata/* build/core/fastdata/
ln -s "$root"/converters "$root"/benchmarks "$root"/examples build/core/fastdata/

for environment in "$@"; do
  version=${environment/oldest/3.10}
  interpreter=$(find_python "$version")
  if [ -z "$interpreter" ]; then
    echo "core.sh: no Python $version (set PYTHON${version/./}): $environment is skipped" >&2
    continue
  fi
  place=.venvs/core-$environment
  if [ ! "$place/.done" -nt setup.cfg ]; then
    rm -rf "$place"
    "$interpreter" -m venv "$place"
    requirements "$interpreter" "$environment" > "$place/requirements.txt"
    "$place/bin/pip" install -q --no-compile -r "$place/requirements.txt" setuptools pybind11
    echo "$root/build/core" > "$place/lib/python$version/site-packages/core.pth"
    touch "$place/.done"
  fi
  "$place/bin/python" setup.py -q build_ext --inplace
  ln -sf "$root"/fastdata/_native.*.so build/core/fastdata/
  echo "core.sh: $environment, $("$place/bin/python" --version)"
  tests=("${core[@]/#/$root/tests/test_}")
  (cd build/core && "$root/$place/bin/python" -m pytest -q -c "$root/pyproject.toml" \
    --rootdir "$root" -p no:cacheprovider -m "not slow" -k "not ($skipped)" \
    -n "${JOBS:-2}" --dist loadfile "${tests[@]/%/.py}")
done
