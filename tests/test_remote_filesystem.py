"""Files in buckets: whole, retried, never over a driver made before a fork, no credentials."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_stores import Bucket

from fastdata.errors import CorruptionError, RemoteError, UsageError
from fastdata.remote.drivers import open_filesystem, parse_storage_options
from fastdata.remote.files import remote_path
from fastdata.remote.filesystem import (
    download,
    file_info,
    list_entries,
    list_files,
    read_bytes,
    remove,
    upload,
)
from fastdata.remote.retries import retrying
from fastdata.remote.urls import is_url, join_url, name_of, redact, redact_text
from fastdata.storage.checksum import crc32c


@pytest.fixture(params=["gcs", "s3"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "local"
    # The emulator takes a last \r for a part of what separates an upload's parts.
    path.write_bytes(os.urandom(99_999) + b"x")
    return path


def checksum(path: Path) -> str:
    return f"{crc32c(path.read_bytes()):08x}"


def test_a_file_comes_back_as_it_was_sent(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    url, options = join_url(bucket.url, "folder/file.bin"), bucket.storage_options
    with pytest.raises(FileNotFoundError):
        file_info(url, options)
    sent = upload(local, url, storage_options=options)
    assert sent.size == 100_000 == file_info(url, options).size
    assert sent.crc32c in (None, checksum(local))
    assert list_files(join_url(bucket.url, "folder"), options) == {"file.bin": 100_000}
    assert list_files(join_url(bucket.url, "other"), options) == {}
    download(url, tmp_path / "back", crc32c=checksum(local), storage_options=options)
    assert (tmp_path / "back").read_bytes() == local.read_bytes()
    assert read_bytes(url, options, 10, 20) == local.read_bytes()[10:20]
    remove(url, options)
    remove(url, options)
    with pytest.raises(FileNotFoundError):
        file_info(url, options)


def test_an_empty_file_and_a_large_one(gcs: Bucket, tmp_path: Path) -> None:
    for name, length in (("empty", 0), ("large", 6_000_000)):
        (tmp_path / name).write_bytes(os.urandom(length))
        url = join_url(gcs.url, name)
        upload(tmp_path / name, url, storage_options=gcs.storage_options)
        download(url, tmp_path / "back", storage_options=gcs.storage_options)
        assert read_bytes(url, gcs.storage_options, length, length) == b""
        assert (tmp_path / "back").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("bucket", "fault"),
    [("gcs", "503"), ("gcs", "429"), ("gcs", "reset"), ("gcs", "lost"), ("s3", "503")],
    indirect=["bucket"],
)
def test_an_upload_survives(bucket: Bucket, local: Path, fault: str) -> None:
    with bucket.through_proxy() as (slow, proxy):
        url = join_url(slow.url, "file")
        proxy.inject(fault, lambda exchange: exchange.method in ("POST", "PUT"))
        upload(local, url, storage_options=slow.storage_options)
        assert any(exchange.fault for exchange in proxy.exchanges)
    assert read_bytes(url, bucket.storage_options) == local.read_bytes()


@pytest.mark.parametrize(
    ("bucket", "fault"),
    [("gcs", fault) for fault in ("503", "429", "reset", "stall", "truncate", "corrupt")]
    + [("s3", "truncate")],
    indirect=["bucket"],
)
def test_a_download_survives(bucket: Bucket, local: Path, tmp_path: Path, fault: str) -> None:
    url = join_url(bucket.url, "file")
    upload(local, url, storage_options=bucket.storage_options)
    with bucket.through_proxy() as (slow, proxy):
        options = dict(slow.storage_options)
        if slow.url.startswith("gs:"):
            options["requests_timeout"] = 1
        else:
            options["config_kwargs"] = {"read_timeout": 1}
        proxy.inject(fault, lambda exchange: bool(exchange.range))
        download(url, tmp_path / "back", crc32c=checksum(local), storage_options=options)
        assert any(exchange.fault for exchange in proxy.exchanges)
    assert (tmp_path / "back").read_bytes() == local.read_bytes()


def test_a_damaged_file_is_not_kept(gcs: Bucket, local: Path, tmp_path: Path) -> None:
    url = join_url(gcs.url, "file")
    upload(local, url, storage_options=gcs.storage_options)
    with pytest.raises(CorruptionError, match="00000001"):
        download(url, tmp_path / "back", crc32c="00000001", storage_options=gcs.storage_options)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["local"]


def test_writes_that_a_disk_cuts_short(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:1000], at))
    download(f"file://{local}", tmp_path / "back", crc32c=checksum(local))
    assert (tmp_path / "back").read_bytes() == local.read_bytes()


def test_the_same_file_is_not_sent_twice(gcs: Bucket, local: Path) -> None:
    with gcs.through_proxy() as (slow, proxy):
        url = join_url(slow.url, "file")
        for _ in range(2):
            upload(local, url, storage_options=slow.storage_options)
        assert proxy.count("POST", "upload") == 1
        local.write_bytes(b"other" * 20_000)
        upload(local, url, storage_options=slow.storage_options)
        assert proxy.count("POST", "upload") == 2
    assert read_bytes(url, gcs.storage_options) == local.read_bytes()


def test_a_missing_bucket(bucket: Bucket, local: Path) -> None:
    url = f"{bucket.url}-other/file"
    with pytest.raises(RemoteError, match="bucket or folder does not exist"):
        upload(local, url, storage_options=bucket.storage_options)
    with pytest.raises(FileNotFoundError):
        read_bytes(url, bucket.storage_options)


def test_a_fork_makes_its_own_filesystem(bucket: Bucket, local: Path) -> None:
    url, options = join_url(bucket.url, "file"), bucket.storage_options
    upload(local, url, storage_options=options)
    fs, _ = open_filesystem(url, options)
    assert open_filesystem(url, options)[0] is fs
    child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(url, options))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert open_filesystem(url, options)[0] is fs


def _read_in_child(url: str, options: dict[str, object]) -> None:
    assert len(read_bytes(url, options)) == 100_000


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("nope://bucket/file", "no driver handles nope://"),
        ("simplecache::gs://bucket/file", "nested URLs"),
    ],
)
def test_a_url_that_nothing_opens(url: str, part: str) -> None:
    assert is_url(url)
    with pytest.raises(UsageError, match=part):
        open_filesystem(url)


def test_paths_are_no_urls(tmp_path: Path) -> None:
    assert not any(is_url(path) for path in (tmp_path, "a/b", "a:b", "./gs:/x", "C:/x"))
    assert is_url("gs://bucket/ds") and is_url("file:///tmp/x") and is_url("S3://b")
    assert name_of("gs://bucket/a/ds/") == "ds"
    assert join_url("https://host/ds?sig=1", "f") == "https://host/ds/f?sig=1"
    assert join_url("gs://bucket/what?/", "f") == "gs://bucket/what?/f"


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://me:pass@host/ds?token=abc#x", "https://***@host/ds?***"),
        ("https://me:pa/ss@host/ds", "https://***@host/ds"),
        ("s3://AKIA:abc@bucket/ds", "s3://***@bucket/ds"),
        ("gs://bucket/what?/x", "gs://bucket/what?/x"),
        ("ftp://host/x", "ftp://host/x"),
    ],
)
def test_urls_are_redacted(url: str, redacted: str) -> None:
    assert redact(url) == redacted


def test_no_credentials_in_errors(s3: Bucket, local: Path, tmp_path: Path) -> None:
    options = {
        **s3.storage_options,
        "secret": "s3cr3t-value",
        "endpoint_url": "http://me:w0rd@127.0.0.1:9",
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }
    with pytest.raises(RemoteError) as caught:
        upload(local, f"{s3.url}/x", storage_options=options, tries=1)
    assert "s3cr3t-value" not in str(caught.value) and "w0rd" not in str(caught.value)
    assert redact_text("GET https://a:b@c/d?X-Amz-Signature=e failed: s3cr3t-value") == (
        "GET https://***@c/d?*** failed: ***"
    )
    with pytest.raises(UsageError) as usage:
        parse_storage_options(["s3cr3t-value"])
    assert "s3cr3t" not in str(usage.value)


def test_storage_options_are_json_where_they_can_be() -> None:
    given = ["anon=true", "token=anon", 'client_kwargs={"region_name": "x"}', "n=3", "e=a=b"]
    assert parse_storage_options(given) == {
        "anon": True,
        "token": "anon",
        "client_kwargs": {"region_name": "x"},
        "n": 3,
        "e": "a=b",
    }


def test_credentials_that_are_missing_are_told_at_once() -> None:
    from botocore.exceptions import NoCredentialsError

    calls = []

    def fails() -> None:
        calls.append(1)
        raise NoCredentialsError

    with pytest.raises(RemoteError, match=r"s3://bucket/x: .*\nCheck the credentials"):
        retrying(fails, what="s3://bucket/x")
    assert len(calls) == 1


def test_giving_up_says_what_and_how_often() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ConnectionResetError("reset by https://u:p@host/x?k=v")

    with pytest.raises(RemoteError) as caught:
        retrying(fail, what="gs://b/x: reading it", tries=3)
    assert len(calls) == 3
    assert "gs://b/x: reading it: failed 3 times" in str(caught.value)
    assert "u:p" not in str(caught.value) and "k=v" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [PermissionError("no"), ValueError("bad"), OSError("Forbidden: x")]
)
def test_errors_that_do_not_pass_are_not_retried(error: Exception) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(RemoteError):
        retrying(fail, what="x")
    assert len(calls) == 1


LARGE = random.Random(1).randbytes(20_000_000)
READS = st.tuples(
    st.integers(0, len(LARGE) + 100), st.sampled_from([0, 1, 512, 70_000, 9_000_000, 1 << 30])
)


@settings(max_examples=8)
@given(reads=st.lists(READS, max_size=4), steps=st.integers(1, 3_000_000))
def test_a_file_read_by_ranges_has_the_bytes_of_the_whole(
    reads: list[tuple[int, int]], steps: int
) -> None:
    url = "memory://ranges/large.bin"
    fs, path = open_filesystem(url)
    if not fs.exists(path):
        fs.pipe_file(path, LARGE)
    reads += [(at, 100) for at in range(0, len(LARGE), steps)][:9]
    found = remote_path(url)
    with pickle.loads(pickle.dumps(found)).open() as file:
        for offset, length in reads:
            assert found.read(offset, length) == LARGE[offset : offset + length]
            file.seek(offset)
            assert file.read(length) == LARGE[offset : offset + length]
            assert file.tell() == max(offset, min(offset + length, len(LARGE)))


def test_how_much_is_read_ahead(gcs: Bucket, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(LARGE[:-1] + b"x")
    url = join_url(gcs.url, "large")
    upload(tmp_path / "large", url, storage_options=gcs.storage_options)
    with gcs.through_proxy() as (slow, proxy):
        for step, requests, received in (
            # As a tar of photographs is listed: all of it, by few requests.
            (110_000, 8, len(LARGE)),
            # As one of tars is, or a column of Parquet: what is asked for, or little more.
            (2_500_000, 8, 8 << 16),
        ):
            path = remote_path(url, slow.storage_options)
            proxy.clear()
            for offset in range(0, len(LARGE), step):
                path.read(offset, 512)
            # Of the file's bytes: gcsfs asks for a file and for a folder of that name at once, and
            # the slower of the two may come after `clear`. By range: where the machine is busy, a
            # request may be made again.
            asked = proxy.matching("GET", "alt=media")
            found = {exchange.range: exchange.received for exchange in asked}
            assert len(found) <= requests
            assert sum(found.values()) <= received + (1 << 18)
        proxy.clear()
        whole = remote_path(url, slow.storage_options).open().read()
        assert whole == LARGE[:-1] + b"x"
        # Nothing that must be begun again as a whole where a connection breaks.
        assert max(exchange.received for exchange in proxy.matching("GET")) <= 8 << 20


def test_what_a_web_server_lists(web: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    for name in ("a.bin", "b/c.bin"):
        path = tmp_path / "web" / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 10)
    entries = list_entries(f"{web}/in")
    assert {name: entry.size for name, entry in entries.items()} == {"a.bin": 50, "b/c.bin": 70}
    found = remote_path(f"{web}/in/b/c.bin")
    assert (found.size, found.mtime_ns) == (70, entries["b/c.bin"].state)
    assert found.read(7, 7) == b"b/c.bin"


def test_what_was_read_is_held_until_it_is_closed(gcs: Bucket, local: Path) -> None:
    """A source knows thousands of files."""
    url = join_url(gcs.url, "file")
    upload(local, url, storage_options=gcs.storage_options)
    with gcs.through_proxy() as (slow, proxy):
        path = remote_path(url, slow.storage_options)
        proxy.clear()
        for opened in (1, 2):
            with path.open() as file:
                for offset in (0, 70_000, 5):
                    file.seek(offset)
                    assert file.read(9) == local.read_bytes()[offset : offset + 9]
            found = [exchange for exchange in proxy.matching("GET") if exchange.status == 206]
            assert len(found) == opened


def test_an_unknown_host_is_told_at_once() -> None:
    unknown = {"endpoint_url": "http://storage.invalid"}
    for url in ("gs://bucket/images", "s3://bucket/images"):
        with pytest.raises(RemoteError, match=rf"^{url}: the host storage.invalid is unknown"):
            list_files(url, unknown)
