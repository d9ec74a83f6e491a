#!/usr/bin/env bash
# Tries the wheels in dist/ without a compiler. Each is installed from a package index into an empty
# environment of its Python, with nothing else on PATH; it packs, verifies and loads a sample. The
# time is from `pip install` to the last image, downloads included.
#
#   .github/wheels/try.sh [--with-torch]      also through DataLoader, with torch (200 MB)
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/pythons.sh
torch=${1:-}
machine=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/load.py" <<'END'
import fastdata
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

dataset = fastdata.ImageDataset("imagenet-train-lmdb")
sizes = {image.size for image, label in dataset}
assert len(dataset) == 64 and len(sizes) > 10, sizes
try:
    import torch
except ImportError:
    print("loaded", len(dataset), "images without torch")
else:
    crop = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])
    loader = fastdata.DataLoader(
        fastdata.ImageDataset("imagenet-train-lmdb", crop), 16, shuffle=True, require_native=True
    )
    shapes = [tuple(images.shape) for images, labels in loader]
    assert shapes == [(16, 3, 224, 224)] * 4, shapes
    print("loaded", shapes)
END

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
    "${clean[@]}" pip install -q --disable-pip-version-check "$wheel${torch:+[torch]}"
    "${clean[@]}" fastdata --version
    "${clean[@]}" fastdata sample --images 64 --val-images 16 --classes 4
    "${clean[@]}" fastdata convert imagenet --split train
    "${clean[@]}" fastdata verify imagenet-train-lmdb
    "${clean[@]}" python "$work/load.py"
  ) < /dev/null
  echo "CPython $version: $(($(date +%s) - begun)) s"
  rm -rf "$place"
done
