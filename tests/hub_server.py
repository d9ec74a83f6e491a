"""The Hub's HTTP API, as much as huggingface_hub asks of it to list and read datasets."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

#: The commit of every dataset's main branch.
SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_a_test"


class Hub(NamedTuple):
    """A running server; ``folder`` holds ``owner/name/`` for each dataset."""

    endpoint: str
    folder: Path
    sent: Counter[str]

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "token": False}


@contextmanager
def hub_at(folder: Path) -> Iterator[Hub]:
    sent: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, data: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _json(self, value: Any, status: int = 200) -> None:
            self._answer(json.dumps(value).encode(), status, Content_Type="application/json")

        def _missing(self, code: str) -> None:
            self._answer(b"{}", 404, X_Error_Code=code, X_Error_Message=code)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            _, _, _, owner, name, *_ = urlsplit(self.path).path.split("/")
            root = folder / owner / name
            fields = json.loads(body) if body.startswith("{") else parse_qs(body)
            entries = [root / one for one in fields["paths"]]
            self._json([_entry(root, one) for one in entries if one.exists()])

        def do_GET(self) -> None:
            parts = [unquote(one) for one in urlsplit(self.path).path.split("/")[1:]]
            api = parts[0] == "api"
            owner, name, *rest = parts[2 if api else 1 :]
            root = folder / owner / name
            revision = rest[1] if len(rest) > 1 else "main"
            allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if not root.is_dir() or (owner == "private" and not allowed):
                self._missing("RepoNotFound")
            elif revision not in ("main", SHA, "v1"):
                self._missing("RevisionNotFound")
            elif api and rest[:1] == ["tree"]:
                below = root.joinpath(*rest[2:])
                recursive = parse_qs(urlsplit(self.path).query).get("recursive") == ["true"]
                found = sorted(below.rglob("*") if recursive else below.glob("*"))
                if not below.exists():
                    self._missing("EntryNotFound")
                    return
                self._json([_entry(root, one) for one in found])
            elif api:
                siblings = [{"rfilename": str(one.relative_to(root))} for one in root.rglob("*")]
                self._json({"id": f"{owner}/{name}", "sha": SHA, "siblings": siblings})
            else:
                self._file(root, "/".join(rest[2:]))

        def _file(self, root: Path, path: str) -> None:
            if not (root / path).is_file():
                self._missing("EntryNotFound")
                return
            data, status = (root / path).read_bytes(), 200
            asked_for = self.headers.get("Range")
            about = {"ETag": f'"{hash(data):x}"', "X_Repo_Commit": SHA}
            if asked_for is not None:
                first, _, last = asked_for.removeprefix("bytes=").partition("-")
                whole = len(data)
                data = data[int(first) : int(last) + 1 if last else None]
                status = 206
                about["Content_Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{whole}"
            if self.command == "GET":
                sent[path] += len(data)
            self._answer(data, status, **about)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Hub(f"http://127.0.0.1:{server.server_port}", folder, sent)
        server.shutdown()


def _entry(root: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(root))
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40}
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": "1" * 40}
