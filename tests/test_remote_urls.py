"""Datasets and sources behind URLs: converted, verified, described, staged; killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from flaky_proxy import wait_until
from object_stores import Bucket
from sources import contents, convert, jpeg, make_tree, require_said

from fastdata.cli import cli
from fastdata.remote.filesystem import join_url, list_files, read_bytes


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 60 small photographs in 3 classes; do not change it."""
    root = tmp_path_factory.mktemp("urls") / "tree"
    return make_tree(root, [f"{name}/{number:02}.jpg" for name in "abc" for number in range(20)])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def remote_contents(bucket: Bucket, url: str, folder: Path) -> dict[str, str]:
    """Digests of the files below a URL, as `contents` has them of a folder."""
    for name in list_files(url, bucket.storage_options):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bytes(join_url(url, name), bucket.storage_options))
    return contents(folder)


SMALL = ("--shard-size", "8KiB")


@pytest.mark.parametrize(
    ("store", "container"),
    [("gcs", "shards"), ("gcs", "parquet"), ("gcs", "lmdb"), ("s3", "shards")],
)
def test_convert_to_a_bucket(
    store: str, container: str, tree: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(store)
    size = () if container == "lmdb" else SMALL
    arguments = ("imagefolder", "--root", tree, "--to", container, *size)
    assert convert(*arguments, "--out", tmp_path / "local").exit_code == 0
    url = f"{bucket.url}/data/{{split}}set"
    result = convert(*arguments, "--out", url, *bucket.arguments)
    require_said(result, 0)
    url = url.replace("{split}", "")
    assert f"{url}: 60 samples of 3 classes" in result.stdout
    assert remote_contents(bucket, url, tmp_path / "back") == contents(tmp_path / "local")
    again = convert(*arguments, "--out", url, *bucket.arguments)
    require_said(again, 0)
    assert "already packed" in again.stdout
    # Nothing is left of it on this machine.
    assert not any((tmp_path / "cache").rglob("*.*"))
