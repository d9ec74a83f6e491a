#!/usr/bin/env bash
# Tries the wheels in dist/ without a compiler. Each is installed from a package index into an empty
# environment of its Python, with nothing else on PATH; it packs, verifies and loads a sample. The
# time is from `pip install` to the last image, downloads included.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/pythons.sh
machine=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for version in $PYTHONS; do
  wheel=$(ls "$PWD"/dist/*-cp"${version/./}"-*"$machine".whl 2>/dev/null || true)
  interpreter=$(find_python "$version")
  if [ -z "$wheel" ] || [ -z "$interpreter" ]; then
    echo "try.sh: no wheel, or no Python, of $version" >&2
    continue
  fi
  place=$work/$version
  "$interpreter" -m venv "$place"
  begun=$(date +%s)
  (
    cd "$place"
    clean=(env -i HOME="$work" PATH="$place/bin" TMPDIR="$place")
    for name in PIP_INDEX_URL PIP_FIND_LINKS PIP_CONFIG_FILE; do
      [ -z "${!name:-}" ] || clean+=("$name=${!name}")
    done
    "${clean[@]}" pip install -q --disable-pip-version-check "$wheel"
    "${clean[@]}" fastdata --version
    "${clean[@]}" fastdata sample --images 64 --val-images 16 --classes 4
    "${clean[@]}" fastdata convert imagenet --split train
    "${clean[@]}" fastdata verify imagenet-train-lmdb
    "${clean[@]}" python -c 'import fastdata
sizes = {image.size for image, label in fastdata.ImageDataset("imagenet-train-lmdb")}
assert len(sizes) > 10, sizes'
  ) < /dev/null
  echo "CPython $version: $(($(date +%s) - begun)) s"
  rm -rf "$place"
done
