"""Files in buckets: whole, retried, never over a driver made before a fork, no credentials."""

from __future__ import annotations

import os
import pickle
import random
import socketserver
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import ClassVar

import pytest
from botocore.exceptions import NoCredentialsError
from hypothesis import given, settings
from hypothesis import strategies as st
from object_stores import Bucket
from sources import jpeg, require_said, run
from tiers import slow

from fastdata._native import crc32c
from fastdata.errors import OutageError, RemoteError, UsageError
from fastdata.remote.drivers import open_filesystem, parse_storage_options
from fastdata.remote.files import remote_path
from fastdata.remote.filesystem import (
    download,
    file_info,
    list_files,
    read_bytes,
    remove,
    upload,
)
from fastdata.remote.retries import Retries
from fastdata.remote.urls import is_url, join_url, name_of, redact, redact_text
from fastdata.threads import awaited


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
    listed = list_files(join_url(bucket.url, "folder"), options)
    assert {name: file.size for name, file in listed.items()} == {"file.bin": 100_000}
    assert list_files(join_url(bucket.url, "other"), options) == {}
    download(url, tmp_path / "back", 100_000, checksum(local), options)
    assert (tmp_path / "back").read_bytes() == local.read_bytes()
    assert read_bytes(url, options, 10, 20) == local.read_bytes()[10:20]
    remove(url, options)
    remove(url, options)
    with pytest.raises(FileNotFoundError):
        file_info(url, options)


@pytest.mark.parametrize(
    ("bucket", "fault"),
    [
        ("gcs", "503"),
        slow("gcs", "429"),
        slow("gcs", "reset"),
        slow("gcs", "lost"),
        slow("s3", "503"),
    ],
    indirect=["bucket"],
)
def test_an_upload_survives(bucket: Bucket, local: Path, fault: str) -> None:
    with bucket.through_proxy() as (slow, proxy):
        url = join_url(slow.url, "file")
        proxy.inject(fault, lambda exchange: exchange.method in ("POST", "PUT"))
        upload(local, url, storage_options=slow.storage_options)
        assert any(exchange.fault for exchange in proxy.exchanges)
    assert read_bytes(url, bucket.storage_options) == local.read_bytes()


class FtpSession(socketserver.StreamRequestHandler):
    """A session that accepts any user; the server ends the first ones before or after its greeting.

    What the latter say is in ``refusals``.
    """

    refusals: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        if self.refusals:
            self.wfile.write(self.refusals.pop())
            return
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            self.wfile.write(b"331 password\r\n" if line.startswith(b"USER") else b"230 in\r\n")


def test_a_driver_that_connects_at_once_and_fails_first() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), FtpSession) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"ftp://127.0.0.1:{server.server_address[1]}/folder"
        FtpSession.refusals[:] = [b"421 too many connections\r\n", b""]
        assert open_filesystem(url)[1] == "/folder"
        assert not FtpSession.refusals
        FtpSession.refusals[:] = [b"530 no\r\n"] * 2
        with pytest.raises(UsageError):
            open_filesystem(f"{url}/", {"username": "other"})
        assert len(FtpSession.refusals) == 1
        server.shutdown()


def test_keys_with_an_empty_part(bucket: Bucket, tmp_path: Path) -> None:
    """Drivers confuse them; in the URL, and in what is listed, they are refused by name."""
    fs, top = open_filesystem(bucket.url, bucket.storage_options)
    for key in ("x//a/1.jpg", "x/b/2.jpg", "marked/", "marked/a/1.jpg"):
        fs.pipe_file(f"{top}/{key}", jpeg() if key.endswith("jpg") else b"")
    for url in (f"{bucket.url}//x", f"{bucket.url}/x//a", f"{bucket.url}/x"):
        out = ("--out", tmp_path / "out")
        for words in (["index", url, *out], ["convert", "imagefolder", "--root", url, *out]):
            require_said(run(*words, *bucket.arguments), 2, "an empty part")
    words = ["index", f"{bucket.url}/marked", "--out", tmp_path / "out"]
    require_said(run(*words, *bucket.arguments), 0)


def test_short_writes(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:1000], at))
    download(f"file://{local}", tmp_path / "back", local.stat().st_size, checksum(local))
    assert (tmp_path / "back").read_bytes() == local.read_bytes()


def test_a_missing_bucket(bucket: Bucket, local: Path) -> None:
    url = f"{bucket.url}-other/file"
    with pytest.raises(RemoteError, match="bucket or folder does not exist"):
        upload(local, url, storage_options=bucket.storage_options)
    with pytest.raises(FileNotFoundError):
        read_bytes(url, bucket.storage_options)


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


@pytest.mark.parametrize(
    ("error", "tries", "said"),
    [
        (ConnectionResetError("by https://u:p@host/x?k=v"), 3, "reading it: failed 3 times"),
        (NoCredentialsError(), 1, "Check the credentials"),
        (PermissionError("no"), 1, "no"),
        (ValueError("bad"), 1, "bad"),
        (OSError("Forbidden: x"), 1, "Forbidden"),
    ],
)
def test_what_is_tried_again(error: Exception, tries: int, said: str) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(RemoteError, match=f"gs://b/x: (.|\n)*{said}") as caught:
        Retries("gs://b/x: reading it", 3).call(fail)
    assert len(calls) == tries
    assert "u:p" not in str(caught.value) and "k=v" not in str(caught.value)


def test_a_cancelled_request_is_not_made_again() -> None:
    request: Future[None] = Future()
    request.cancel()
    retries = Retries("gs://b/x", 3)
    with pytest.raises(CancelledError):
        retries.call(lambda: awaited(request))
    assert retries.failed == 1


def test_a_request_alone_has_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    retries = Retries("gs://b/x", 99)
    with pytest.raises(OutageError):
        list(map(retries.wait_after, [TimeoutError()] * 9))
    assert 1 < retries.failed < 9


LARGE = random.Random(1).randbytes(20_000_000)
READS = st.tuples(
    st.integers(0, len(LARGE) + 100), st.sampled_from([0, 1, 512, 70_000, 9_000_000, 1 << 30])
)


@settings(max_examples=4)
@given(reads=st.lists(READS, max_size=4), steps=st.integers(1, 3_000_000))
def test_a_file_read_by_ranges(reads: list[tuple[int, int]], steps: int) -> None:
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


def test_an_unknown_host_is_told_at_once() -> None:
    unknown = {"endpoint_url": "http://storage.invalid"}
    for url in ("gs://bucket/images", "s3://bucket/images"):
        with pytest.raises(RemoteError, match=rf"^{url}: the host storage.invalid is unknown"):
            list_files(url, unknown)
