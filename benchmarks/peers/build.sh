#!/bin/sh
# Builds .venvs/peers/NAME from benchmarks/peers/NAME.txt: peers cannot share one environment. PYTHON
# chooses the interpreter. NAME.txt is a pip requirements file, whose lines that start with `#:` say
#
#     #: apt PACKAGES    Debian packages; installed when run by root, else named
#     #: share PEER      the packages of this other environment are visible here too
#     #: first PACKAGES  installed before the rest, because the rest needs them to build
#     #: cc COMMAND      the C compiler for packages built from source
#     #: pip-args ARGS   arguments for `pip install -r NAME.txt`
set -eu

name=${1:?which peer? benchmarks/peers/build.sh NAME}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
list=$here/$name.txt
environment=$root/.venvs/peers/$name
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

directive() {
    sed -n "s/^#: $1 //p" "$list" | tr '\n' ' '
}

for other in $(directive share); do
    PYTHON=$python "$0" "$other"
done

# One build of an environment at a time: peers that share one may be built side by side.
mkdir -p "$root/.venvs/peers"
exec 9>"$root/.venvs/peers/$name.lock"
flock 9

stamp=$(cat "$0" "$list" | cksum; "$python" --version)
if [ -f "$environment/.done" ] && [ "$(cat "$environment/.done")" = "$stamp" ]; then
    exit 0
fi

missing=
for package in $(directive apt); do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "$name needs: sudo apt-get install$missing" >&2
        exit 1
    fi
fi

rm -rf "$environment"
"$python" -m venv "$environment"
for other in $(directive share); do
    "$environment/bin/python" - "$root/.venvs/peers/$other" <<'END'
import sys, sysconfig
from pathlib import Path

own = sysconfig.get_path("purelib")
theirs = sysconfig.get_path("purelib", vars={"base": sys.argv[1]})
Path(own, "shared-" + Path(sys.argv[1]).name + ".pth").write_text(theirs + "\n")
END
done
set -f
compiler=$(directive cc)
if [ -n "$compiler" ]; then
    export CC="$compiler"
fi
if [ -n "$(directive first)" ]; then
    "$environment/bin/python" -m pip install -q $(directive first)
fi
"$environment/bin/python" -m pip install -q $(directive pip-args) -r "$list"
set +f
printf '%s' "$stamp" >"$environment/.done"
