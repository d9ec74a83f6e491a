"""Both clients that read byte ranges, against the same servers: the same bytes, or an error."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flaky_proxy import FAULTS, Exchange, FlakyProxy
from hangs import HANG
from loader_data import CROPS, besides_fallback, dataset, same
from object_stores import ONLY_FSSPEC, Bucket, Store, send_tree
from prefork import Prefork
from tiers import slow
from web_server import Quiet, WebServer, serving

from fastdata import DataLoader, ImageDataset
from fastdata.errors import RemoteError
from fastdata.remote import RemoteOptions, drivers, places
from fastdata.remote.clients import FsspecClient, RangeClient
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.places import http_client as find_client
from fastdata.remote.reader import RangeReader

DATA = os.urandom(1 << 20)
#: Requests that take longer than this fail.
SECONDS = 2.0
#: Many requests, few at a time.
SMALL = RemoteOptions(concurrency=2, max_request=1, memory=256 << 10, timeout=SECONDS)

Client = Callable[[str, Any], RangeClient]


def fsspec_client(url: str, options: Any) -> RangeClient:
    return FsspecClient(open_filesystem(url, options)[0])


def http_client(url: str, options: Any) -> RangeClient:
    client = find_client(open_filesystem(url, options)[0], url, options)
    assert client is not None and client.reads(url) and client.name == "http"
    return client


@pytest.fixture(params=[fsspec_client, http_client], ids=["fsspec", "http"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget drivers that other tests opened, and the credentials of this machine."""
    monkeypatch.setattr(drivers, "_opened", {})
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "STORAGE_", "FSSPEC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))


def configure(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Set variables; fsspec reads its own when it is imported."""
    import fsspec.config

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found: dict[str, Any] = {}
    fsspec.config.set_conf_env(found)
    monkeypatch.setattr(fsspec.config, "conf", found)


class Case(NamedTuple):
    """Options of a driver, and what headers of a request hold then.

    ``SERVER`` and ``FOLDER`` in them are replaced.
    """

    options: dict[str, Any]
    environment: dict[str, str]
    sent: dict[str, str]

    def at(self, server: str, folder: Path) -> Case:
        text = json.dumps(self).replace("SERVER", server).replace("FOLDER", str(folder))
        return Case(*json.loads(text))


_KEY = {"key": "own-key", "secret": "own-secret"}
_KEYS = {"AWS_ACCESS_KEY_ID": "own-key", "AWS_SECRET_ACCESS_KEY": "own-secret"}
_SIGNED = {"Authorization": "Credential=own-key/"}
_WITH_TOKEN = {**_SIGNED, "X-Amz-Security-Token": "own-token"}
_REGION = {"Authorization": "/eu-west-3/s3/"}
_PROFILE = {"AWS_SHARED_CREDENTIALS_FILE": "FOLDER/profiles"}
_THERE = {"endpoint_url": "SERVER"}
_PATHS = {"s3": {"addressing_style": "path"}}

AMAZON = {
    "key": Case({**_THERE, **_KEY}, {}, _SIGNED),
    "token": Case({**_THERE, **_KEY, "token": "own-token"}, {}, _WITH_TOKEN),
    "anon": Case({**_THERE, "anon": True}, _KEYS, {"Authorization": ""}),
    "profile": Case({**_THERE, "profile": "own"}, _PROFILE, _SIGNED),
    "region": Case({**_KEY, "client_kwargs": {**_THERE, "region_name": "eu-west-3"}}, {}, _REGION),
    "style": Case({**_THERE, **_KEY, "config_kwargs": _PATHS}, {}, _SIGNED),
    "AWS_PROFILE": Case(_THERE, {**_PROFILE, "AWS_PROFILE": "own"}, _SIGNED),
    "AWS_ACCESS_KEY_ID": Case(_THERE, _KEYS, _SIGNED),
    "AWS_SESSION_TOKEN": Case(_THERE, {**_KEYS, "AWS_SESSION_TOKEN": "own-token"}, _WITH_TOKEN),
    "AWS_DEFAULT_REGION": Case(_THERE, {**_KEYS, "AWS_DEFAULT_REGION": "eu-west-3"}, _REGION),
    "AWS_ENDPOINT_URL": Case({}, {**_KEYS, "AWS_ENDPOINT_URL": "SERVER"}, _SIGNED),
    "FSSPEC_S3": Case({}, {"FSSPEC_S3": json.dumps({**_THERE, **_KEY})}, _SIGNED),
    "FSSPEC_S3_KEY": Case(
        _THERE, {"FSSPEC_S3_KEY": "own-key", "FSSPEC_S3_SECRET": "own-secret"}, _SIGNED
    ),
}
_BEARER = {"Authorization": "Bearer own-token-"}
_NONE = {"Authorization": ""}
_ACCOUNT = {"GOOGLE_APPLICATION_CREDENTIALS": "FOLDER/account"}
_EMULATOR = {"STORAGE_EMULATOR_HOST": "SERVER"}
GOOGLE = {
    "anon": Case({**_THERE, "token": "anon"}, {}, _NONE),
    "token": Case({**_THERE, "token": "FOLDER/account"}, {}, _BEARER),
    "STORAGE_EMULATOR_HOST": Case({"token": "anon"}, _EMULATOR, _NONE),
    "GOOGLE_APPLICATION_CREDENTIALS": Case({**_THERE, "project": "test"}, _ACCOUNT, _BEARER),
    "FSSPEC_GS_TOKEN": Case(_THERE, {"FSSPEC_GS_TOKEN": "anon"}, _NONE),
    "FSSPEC_GS": Case({}, {"FSSPEC_GS": json.dumps({**_THERE, "token": "anon"})}, _NONE),
}
_HEADERS = {"headers": {"Authorization": "Bearer own-token"}}
_AGENT = {"headers": {"user-agent": "own", "authorization": "Bearer own-token"}}
WEB = {
    "none": Case({}, {}, _NONE),
    "headers": Case(_HEADERS, {}, _HEADERS["headers"]),
    "client": Case({"client_kwargs": _HEADERS}, {}, _HEADERS["headers"]),
    "both": Case({**_AGENT, "client_kwargs": _HEADERS}, {}, {"User-Agent": "own"}),
    "FSSPEC_HTTP": Case({}, {"FSSPEC_HTTP": json.dumps(_HEADERS)}, _HEADERS["headers"]),
}


def check_case(
    case: Case, url: str, proxy: FlakyProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, case.environment)
    reader = client(url, case.options)
    proxy.clear()
    assert bytes(reader.get(url, 1000, 51_000, SECONDS)) == DATA[1000:51_000]
    asked = [one for one in proxy.exchanges if one.range]
    assert [one.range for one in asked] == ["bytes=1000-50999"]
    for name, value in case.sent.items():
        given = said(asked[0], name)
        assert value in given and bool(value) == bool(given)


def said(asked: Exchange, name: str) -> str:
    """Return a header of a request, or what a signed URL says instead."""
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(asked.path).query))
    if "X-Amz-Credential" in query:
        query["Authorization"] = f"Credential={query['X-Amz-Credential']}"
    return asked.headers.get(name) or query.get(name, "")


@contextmanager
def put(bucket: Bucket, name: str = "file", **options: Any) -> Iterator[tuple[str, FlakyProxy]]:
    url = f"{bucket.url}/{name}"
    fs, path = open_filesystem(url, bucket.storage_options)
    fs.pipe_file(path, DATA, **options)
    with bucket.through_proxy() as (_, proxy):
        yield url, proxy


@pytest.mark.parametrize("case", AMAZON.values(), ids=AMAZON)
def test_options_of_amazon(
    case: Case, s3: Bucket, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = "aws_access_key_id = own-key\naws_secret_access_key = own-secret\n"
    (tmp_path / "profiles").write_text(f"[own]\n{keys}")
    with put(s3, ACL="public-read") as (url, proxy):
        check_case(case.at(proxy.url, tmp_path), url, proxy, client, monkeypatch)


HOSTS: dict[str, dict[str, Any]] = {
    "anon": {"anon": True},
    "new region": {"client_kwargs": {"region_name": "me-south-1"}},
    "China": {"client_kwargs": {"region_name": "cn-north-1"}},
    "style": {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},
    "accelerate": {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
}


@pytest.mark.parametrize("options", HOSTS.values(), ids=HOSTS)
def test_hosts_of_amazon(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"key": "own-key", "secret": "own-secret", **options}
    hosts: list[list[str]] = []

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        hosts[-1].append(host)
        raise LookupError  # no error of the network, so nothing tries again

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for make in (fsspec_client, http_client):
        hosts.append([])
        with pytest.raises(Exception):  # noqa: B017, PT011
            make("s3://bucket/file", options).get("s3://bucket/file", 0, 10, SECONDS)
    assert hosts[0][0] == hosts[1][0]


class Tokens(Quiet, BaseHTTPRequestHandler):
    """Answers each request with another token."""

    #: Google's library renews a token five minutes before its end.
    seconds = 302
    numbers: Iterator[int]

    def do_POST(self) -> None:
        token = {"access_token": f"own-token-{next(self.numbers)}", "expires_in": self.seconds}
        data = json.dumps(token).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Path]:
    """The file of a service account of Google."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with serving(type("Counted", (Tokens,), {"numbers": count()})) as url:
        names = {"project_id": "test", "client_id": "1", "client_email": "test@test.invalid"}
        secrets = {"private_key_id": "1", "private_key": key.decode(), "token_uri": url}
        path = tmp_path / "account"
        path.write_text(json.dumps({"type": "service_account", **names, **secrets}))
        yield path


@pytest.mark.parametrize("case", GOOGLE.values(), ids=GOOGLE)
def test_options_of_google(
    case: Case, gcs: Bucket, client: Client, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with put(gcs) as (url, proxy):
        check_case(case.at(proxy.url, account.parent), url, proxy, client, monkeypatch)


@pytest.mark.parametrize("name", ["a b+c%25/ü", "q?x=1&y#z", "p%2Fq"])
def test_odd_names(name: str, s3: Bucket, gcs: Bucket, client: Client) -> None:
    for bucket in (s3, gcs):
        with put(bucket, name) as (url, _):
            data = client(url, bucket.storage_options).get(url, 5, 99, SECONDS)
            assert bytes(data) == DATA[5:99]


@pytest.mark.parametrize("case", WEB.values(), ids=WEB)
def test_options_of_web_servers(
    case: Case, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with WebServer(tmp_path) as server, FlakyProxy(server.url) as proxy:
        check_case(case, f"{proxy.url}/file", proxy, client, monkeypatch)


# Failures.


@pytest.fixture(params=["web", slow("gcs"), slow("s3")])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A folder with the one file ``file``."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "file").write_bytes(DATA)
    if request.param == "web":
        with WebServer(folder) as server, FlakyProxy(server.url) as proxy:
            yield Store(proxy.url, {}, proxy)
        return
    bucket = request.getfixturevalue(request.param)
    url = send_tree(bucket, folder, "data")
    with bucket.through_proxy() as (behind, proxy):
        yield Store(url, behind.storage_options, proxy)


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_are_errors(fault: str, there: Store, client: Client) -> None:
    url = f"{there.url}/file"
    reader = client(url, there.options)
    assert bytes(reader.get(url, 0, 1000, SECONDS)) == DATA[:1000]
    there.proxy.inject(fault, times=sys.maxsize)
    # A client cannot see that bytes are wrong; those who ask compare checksums.
    seen = suppress(Exception) if fault == "corrupt" else pytest.raises(Exception)  # noqa: PT011
    with seen:
        reader.get(url, 1000, 51_000, SECONDS)
    assert there.proxy.exchanges[-1].fault == fault
    there.proxy.clear()
    assert bytes(reader.get(url, 1000, 51_000, SECONDS)) == DATA[1000:51_000]


def test_a_missing_file_and_a_range_beyond_the_end(there: Store, client: Client) -> None:
    url = f"{there.url}/file"
    reader = client(url, there.options)
    for missing in (f"{there.url}/other", f"{there.url}/folder/file"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            reader.get(missing, 0, 10, SECONDS)
    for start, stop in ((len(DATA) - 5, len(DATA) + 5), (len(DATA), len(DATA) + 10)):
        with pytest.raises(Exception):  # noqa: B017, PT011
            reader.get(url, start, stop, SECONDS)
    ranges = RangeReader(there.url, there.options, replace(SMALL, tries=1))
    with pytest.raises(RemoteError):
        ranges.read(f"{there.url}/other", 0, 10)
    with pytest.raises(RemoteError):
        ranges.read(url, len(DATA) - 5, len(DATA) + 5)


def test_a_server_that_does_not_listen(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file"
    with pytest.raises(Exception):  # noqa: B017, PT011
        client(url, {}).get(url, 0, 10, SECONDS)


@pytest.mark.parametrize("ranges", [True, False])
def test_whole_files_are_no_ranges(ranges: bool, client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with WebServer(tmp_path, ranges=ranges) as server:
        url = f"{server.url}/file"
        reader = client(url, {})
        for start, stop in ((0, len(DATA)), (5, 15), (0, 10)):
            with nullcontext() if ranges else suppress(Exception):
                data = bytes(reader.get(url, start, stop, SECONDS))
                assert data == DATA[start:stop] or len(data) != stop - start


# Passes of a loader.


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_fsspec_reads_behind_a_proxy(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{scheme}://127.0.0.1/folder"
    there = {"endpoint_url": "http://127.0.0.1:1"}
    usual = {"s3": {**_KEY, **there}, "gs": {**there, "token": "anon"}, "http": {}}[scheme]
    monkeypatch.setenv("NO_PROXY", "localhost")  # alone, it changes nothing
    http_client(url, usual)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert find_client(open_filesystem(url, usual)[0], url, usual) is None


def pass_of(there: Store, options: RemoteOptions = SMALL, **more: Any) -> DataLoader[Any]:
    far = ImageDataset(there.url, CROPS, storage_options=there.options, remote=options)
    return DataLoader(far, 8, seed=3, num_workers=1, order="sequential", **more)


def expected() -> list[Any]:
    near = ImageDataset(dataset("shards"), CROPS)
    return list(DataLoader(near, 8, seed=3, num_workers=1, order="sequential"))


@contextmanager
def packed_store() -> Iterator[Store]:
    with WebServer(dataset("shards")) as server, FlakyProxy(server.url) as proxy:
        yield Store(proxy.url, {}, proxy)


def client_of(loader: DataLoader[Any]) -> str:
    return loader.stats().remote.client


def test_which_client_reads(s3: Bucket, gcs: Bucket) -> None:
    s3_url, gcs_url = (send_tree(bucket, dataset("shards"), "data") for bucket in (s3, gcs))
    session = pytest.importorskip("aiobotocore.session").get_session()
    aiohttp = pytest.importorskip("aiohttp")
    with packed_store() as there, WebServer(dataset("shards"), query="token=1") as queried:
        cases: list[tuple[str, dict[str, Any], str]] = [
            (s3_url, s3.storage_options, "http"),
            (gcs_url, gcs.storage_options, "http"),
            (there.url, {}, "http"),
            (s3_url, {**s3.storage_options, "requester_pays": True}, "fsspec"),
            (s3_url, {**s3.storage_options, "session": session}, "fsspec"),
            (gcs_url, {**gcs.storage_options, "session_kwargs": {"trust_env": True}}, "fsspec"),
            (there.url, {"size_policy": "head"}, "fsspec"),
            (there.url, {"client_kwargs": {"trust_env": True}}, "fsspec"),
            (there.url, {"client_kwargs": {"timeout": aiohttp.ClientTimeout(60)}}, "fsspec"),
            (f"{queried.url}?token=1", {}, "fsspec"),
            (f"memory://{gcs_url[5:]}", {}, "fsspec"),
            (f"file://{dataset('shards')}", {}, "fsspec"),
        ]
        fs, path = open_filesystem(cases[-2][0])
        fs.put(f"{dataset('shards')}/", path, recursive=True)
        for url, options, name in cases:
            loader = pass_of(Store(url, options, there.proxy))
            assert same(list(loader), expected())
            assert client_of(loader) == name, url


#: Prints credentials that end soon. Their number of nanoseconds is part of the key.
_PROCESS = """
import datetime, json, time
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
print(json.dumps({"Version": 1, "AccessKeyId": f"own-{time.time_ns()}", "SecretAccessKey": "own",
                  "SessionToken": "own-token", "Expiration": end.isoformat()}))
"""


@pytest.mark.parametrize("scheme", ["gs", "s3"])
@pytest.mark.parametrize("name", ["fsspec", "http"])
def test_credentials_that_end_in_the_middle_of_a_pass(
    scheme: str, name: str, account: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    bucket = request.getfixturevalue({"gs": "gcs", "s3": "s3"}[scheme])
    url = send_tree(bucket, dataset("shards"), "data")
    script, profiles = account.with_name("process.py"), account.with_name("profiles")
    script.write_text(_PROCESS)
    profiles.write_text(f"[profile own]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profiles))
    monkeypatch.setattr(places, "_SIGNED", 1.0)  # these end before Amazon's do
    with FlakyProxy(bucket.endpoint) as proxy:
        options = {"endpoint_url": proxy.url}
        options |= {"profile": "own"} if scheme == "s3" else {"token": str(account)}
        options |= ONLY_FSSPEC[scheme] if name == "fsspec" else {}
        there = Store(url, options, proxy)
        loader = pass_of(there, replace(SMALL, memory=16 << 10))
        batches = iter(loader)
        found = [next(batches)]
        time.sleep(3)
        used = {said(one, "Authorization") for one in proxy.exchanges}
        proxy.clear()
        found += batches
        assert same(found, expected()) and client_of(loader) == name
        assert loader.stats().remote.retries == 0
        later = [said(one, "Authorization") for one in proxy.matching("GET", ".tar")]
        # A request may be under way, and wait in a thread, while they end.
        assert len(later) > 10 and not used & {*later[4:]}


# Processes.


def _read(there: tuple[str, dict[str, Any]], results: Any) -> None:
    loader = pass_of(Store(*there, None))  # type: ignore[arg-type]
    digest = [batch[0].numpy().tobytes() for batch in loader]
    results.send((digest, loader.dataset.read([4, 2]), client_of(loader)))


@pytest.mark.parametrize("start", ["fork", "spawn", slow("forkserver")])
def test_children_of_a_process_that_reads(start: Any, gcs: Bucket) -> None:
    url = send_tree(gcs, dataset("shards"), "data")
    near = ImageDataset(dataset("shards"), CROPS)
    digest = [batch[0].numpy().tobytes() for batch in expected()]
    with gcs.through_proxy() as (bucket, proxy):
        loader = pass_of(Store(url, bucket.storage_options, proxy), replace(SMALL, memory=16 << 10))
        batches = iter(loader)
        found = [next(batches)]
        proxy.delay = 0.01  # requests are under way
        context = multiprocessing.get_context(start)
        for _ in range(2):
            results, end = context.Pipe(False)
            child = context.Process(target=_read, args=((url, bucket.storage_options), end))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
                child.start()
            end.close()
            assert results.poll(HANG)
            assert results.recv() == (digest, near.read([4, 2]), "http")
            child.join(HANG)
            assert child.exitcode == 0
            found.append(next(batches))
        found += batches
        assert same(found, expected()) and client_of(loader) == "http"


_EXIT = """
import os, sys
from fastdata.remote import RemoteOptions
far = fastdata.ImageDataset(sys.argv[1], fastdata.transforms.CenterCrop(24),
                            remote=RemoteOptions(max_request=1))
loader = fastdata.DataLoader(far, batch_size=2, num_workers=1, order="sequential")
batches = iter(loader)
next(batches)
while not os.path.exists(sys.argv[2]):
    pass
print(loader.stats().remote.client)
"""


@pytest.mark.parametrize("times", [3, slow(20)])
def test_exits_while_requests_are_under_way(times: int, tmp_path: Path) -> None:
    def is_late(request: Exchange) -> bool:
        if request.path > "/shard-000001":
            asked.touch()
            return True
        return False

    with packed_store() as there, Prefork("import torch, fastdata.loading, aiohttp") as running:
        for number in range(times):
            there.proxy.clear()
            # Answers never come, but for the first batch.
            asked = tmp_path / str(number)
            there.proxy.inject("stall", is_late, sys.maxsize)
            there.proxy.delay = 0.002 * number
            done = running.run(_EXIT, there.url, asked)
            assert (done.returncode, done.stdout) == (0, "http\n"), done.stderr
            assert done.stderr == ""


def test_a_server_that_only_fsspec_can_read() -> None:
    near = DataLoader(ImageDataset(dataset("shards"), CROPS), 8, seed=3, order="sequential")
    with packed_store() as there:
        there.proxy.inject(
            "503", lambda one: one.headers.get("User-Agent") == "fastdata", sys.maxsize
        )
        loader = pass_of(there)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                assert same(list(loader), list(near))
                assert client_of(loader) == "fsspec"
        assert len(besides_fallback(warned)) == 1
        found = there.proxy.matching("GET", ".tar")
        assert 0 < sum(one.fault is not None for one in found) < 20


def test_a_server_that_fails_for_both_keeps_its_client() -> None:
    with packed_store() as there:
        there.proxy.inject_often(0.3, 1, ["503", "reset", "truncate"])
        loader = pass_of(there)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert same(list(loader), expected())
        assert client_of(loader) == "http" and not besides_fallback(warned)


def test_retries_of_files_that_only_fsspec_reads_are_no_doubts(tmp_path: Path) -> None:
    (tmp_path / "odd+name").write_bytes(DATA)
    options = RemoteOptions(concurrency=1, timeout=SECONDS)
    with WebServer(tmp_path) as server, FlakyProxy(server.url) as proxy:
        reader = RangeReader(proxy.url, {}, options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for start in range(5):
                proxy.inject("503", lambda one: bool(one.range), 1)
                data = reader.read(f"{proxy.url}/odd+name", start, start + 10)
                assert bytes(data) == DATA[start : start + 10]
        assert reader.client == "http" and reader.counts.retries == 5


_SECURE = """
import json, sys
import test_remote_clients as tests
url, options = sys.argv[1], json.loads(sys.argv[2])
for make in (tests.fsspec_client, tests.http_client):
    try:
        data = make(url, options).get(url, 1000, 51_000, 10.0)
        print(make.__name__, bytes(data).hex())
    except Exception:
        print(make.__name__, "refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "AWS_CA_BUNDLE"])
def test_certificates_that_the_environment_names(
    variable: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with WebServer(tmp_path) as server, ExitStack() as stack:
        url = ""
        if variable == "AWS_CA_BUNDLE":
            url, server = stack.enter_context(put(request.getfixturevalue("s3")))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        secure = f"https{server.url.removeprefix('http')}"
        options = {**_KEY, "endpoint_url": secure} if url else {}
        command = [sys.executable, "-c", _SECURE, url or f"{secure}/file", json.dumps(options)]
        for outcome in ("refused", DATA[1000:51_000].hex()):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert done.stdout == f"fsspec_client {outcome}\nhttp_client {outcome}\n"
            monkeypatch.setenv(variable, str(certificate))
