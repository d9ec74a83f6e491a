"""Files made to harm: values that make no sense, under checksums that fit."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from containers import edit_manifest, exchanged, load_manifest

from fastdata._native import crc32c
from fastdata.storage import manifest
from fastdata.storage.files import crc32c_file

BLOCK = 512
#: Values that sizes, counts and offsets are set to.
NUMBERS = (0, 1, 7, 511, 512, 513, 4095, 4096, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40,
           1 << 52, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


def damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if not out:
            break
        at = rng.randrange(min(len(out), rng.choice((200, len(out)))))
        at = len(out) - 1 - at if rng.random() < 0.3 else at
        length = rng.choice((1, 2, 4, 8, rng.randrange(1, 64)))
        part = bytes(out[at : at + length])
        out[at : at + length] = rng.choice((
            bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:], rng.randbytes(length),
            rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * length, b"", part * 2,
        ))  # fmt: skip
        if rng.random() < 0.1:
            del out[rng.randrange(len(out) + 1) :]
    return bytes(out)


# JSON.


def change_field(fields: dict[str, Any] | list[Any], rng: random.Random) -> None:
    keys: list[Any] = list(fields) if isinstance(fields, dict) else list(range(len(fields)))
    if not keys:
        return
    key = rng.choice(keys)
    value = fields[key]
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        change_field(value, rng)
    elif rng.random() < 0.1:
        del fields[key]
    elif isinstance(value, int) and rng.random() < 0.5:
        fields[key] = value + rng.choice((-1, 1, 7, -value - 1))
    elif isinstance(value, str) and rng.random() < 0.5:
        text = damage(value.encode(), rng).decode(errors="replace")
        fields[key] = rng.choice((text, "", "../" + value, "/" + value, value * 100))
    else:
        fields[key] = rng.choice(
            (None, True, -1, 0, 1 << 31, 1 << 63, 1 << 70, 0.5, "", "x", "\0", [], {}, [value])
        )  # fmt: skip


#: Texts that take the place of a value: too deep, too long, not quite JSON, a name twice.
ODD_JSON: tuple[str, ...] = (
    "[" * 200 + "]" * 200, "[" * 100_000, '{"a":' * 3_000 + "1" + "}" * 3_000, "9" * 5_000,
    "-" + "9" * 4_000, "1e999", "NaN", "-Infinity", '"\\ud800"', '{"a": 1, "a": 2}', "true", "nul",
    '"' + "x" * 70_000 + '"', '"\\u0000"', "",
)  # fmt: skip


def odd_json(fields: dict[str, Any], rng: random.Random) -> bytes:
    """An object's text, with a value that no writer would have written."""
    mark = "a value to be replaced"
    changed = {**fields, rng.choice([*fields, "other"]): mark}
    text = json.dumps(changed, ensure_ascii=False)
    if rng.random() < 0.2:
        text = text[:-1] + ", " + json.dumps({rng.choice(list(fields)): 1})[1:]
    return text.replace(f'"{mark}"', rng.choice(ODD_JSON)).encode()


def change_json(
    data: bytes, rng: random.Random, text_of: Callable[[Any], str] = json.dumps
) -> bytes:
    fields = json.loads(data)
    if rng.random() < 0.3:
        return odd_json(fields, rng)
    if text_of is json.dumps and rng.random() < 0.3:
        return damage(data, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change_field(fields, rng)
    return text_of(fields).encode("utf-8", "surrogatepass")


def change_manifest(data: bytes, rng: random.Random) -> bytes:
    """A manifest with other values and, where these have one, the checksum that fits."""
    return change_json(data, rng, manifest.text_of)


# Tar.


def tar_header(
    name: bytes,
    size: int | bytes,
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """A header block with the checksum that fits; ``size`` may be the field's bytes."""
    if isinstance(size, int):
        size = b"%011o\0" % size if 0 <= size < 8**11 else base256(size)
    block = bytearray(BLOCK)
    for at, most, value in (
        (0, 100, name), (100, 8, b"0000644\0"), (108, 8, b"0000000\0"), (116, 8, b"0000000\0"),
        (124, 12, size), (136, 12, b"00000000000\0"), (156, 1, kind), (257, 8, magic),
        (345, 155, prefix),
    ):  # fmt: skip
        block[at : at + most] = value[:most].ljust(most, b"\0")
    return reseal(bytes(block))


def base256(size: int) -> bytes:
    """A size as GNU tar writes one that octal digits cannot."""
    return (size + (1 << 95 if size >= 0 else 1 << 96)).to_bytes(12, "big")


def reseal(block: bytes) -> bytes:
    total = sum(block[:148]) + sum(block[156:]) + 8 * 32
    return block[:148] + b"%06o\0 " % total + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def pax_record(key: bytes, value: bytes) -> bytes:
    """A record of a PAX header: its own length comes first."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def tar_extra(kind: bytes, data: bytes, size: int | bytes | None = None) -> bytes:
    """A header of the next header: ``L``, ``K``, ``x`` or ``g``."""
    return tar_header(b"././@LongLink", len(data) if size is None else size, kind) + padded(data)


def change_tar(data: bytes, rng: random.Random) -> bytes:
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        heads = [n for n, b in enumerate(blocks) if len(b) == BLOCK and reseal(b) == b and any(b)]
        if not heads:
            break
        at = rng.choice(heads)
        match rng.randrange(8):
            case 0 | 1 | 2:
                blocks[at] = _change_header(blocks[at], rng)
            case 3 | 4:
                extra = b"".join(_extra(rng) for _ in range(rng.choice((1, 1, 2, 3, 20))))
                blocks[at:at] = [extra[n : n + BLOCK] for n in range(0, len(extra), BLOCK)]
            case 5:
                blocks[at] = blocks[rng.choice(heads)]
            case 6:
                blocks[at : at + rng.randrange(3)] = blocks[at : at + rng.choice((0, 1, 2, 3))]
            case _:  # the first block of a member's data
                if at + 1 < len(blocks):
                    blocks[at + 1] = damage(blocks[at + 1], rng)[:BLOCK].ljust(BLOCK, b"\0")
    return b"".join(blocks)


def _change_header(block: bytes, rng: random.Random) -> bytes:
    out = bytearray(block)
    number = rng.choice(NUMBERS)
    match rng.randrange(6):
        case 0:
            texts = (b"-0000001000\0", b"-1", b"0_1", b"+7", b"0o17", b" 7 ", b"", b"9" * 12,
                     b"7" * 12, b"\xff" * 12, base256(number), base256(-number), b"x",
                     b"%011o\0" % min(number, 8**11 - 1))  # fmt: skip
            out[124:136] = rng.choice(texts).ljust(12, b"\0")[:12]
        case 1:
            out[156] = rng.choice(b"\x00123567LKxXgSVDMN\xff")
        case 2:
            names = (b"", b"/", b".", b"..", b"../x.jpg", b"/x.jpg", b"a/../b.jpg", b"\xff.jpg",
                     b"x" * 100, b"a/", b".jpg", b"1.jpg", b"1.JPG", b"1.cls", b"__key__",
                     b"1.__key__", b"__x__/1.jpg", b"1", b"a.b/1", b"\n\x1b[2J.jpg")  # fmt: skip
            out[:100] = rng.choice(names).ljust(100, b"\0")
        case 3:
            out[345:500] = rng.choice((b"", b"..", b"/", b"a" * 155, b"\xff")).ljust(155, b"\0")
        case 4:
            out[257:265] = rng.choice((b"ustar\x0000", b"ustar  \0", bytes(8), b"garbage!"))
        case _:
            out[rng.randrange(BLOCK)] ^= 1 << rng.randrange(8)
    return reseal(bytes(out))


def _extra(rng: random.Random) -> bytes:
    kind = rng.choice((b"L", b"L", b"K", b"x", b"x", b"x", b"X", b"g"))
    if kind in b"LK":
        data = rng.choice((b"a/1.jpg\0", b"", b"x" * 300, b"x" * 70_000, b"../x.jpg\0", b"\xff\0"))
    else:
        numbers = [str(rng.choice(NUMBERS)).encode(), b"-512", b"1e9", b"", b"9" * 5_000]
        records = [
            pax_record(key, rng.choice(values))
            for key, values in (
                (b"path", (b"a/1.jpg", b"", b"/x.jpg", b"x" * 70_000, b"\xff", b"\0")),
                (b"size", numbers),
                (b"GNU.sparse.major", (b"1", b"x")),
                (b"GNU.sparse.map", (b"0,1", b"9" * 5_000)),
                (b"GNU.sparse.realsize", numbers),
                (b"mtime", (b"nan", b"1e999")),
                (b"hdrcharset", (b"BINARY", b"x")),
                (b"comment", (b"x", b"x" * 5_000)),
            )
            if rng.random() < 0.25
        ]
        data = b"".join(records)
        if rng.random() < 0.2:
            data = damage(data, rng)
        if rng.random() < 0.1:
            data = rng.choice(
                (b"0 a=b\n", b"-5 a=b\n", b"9" * 5_000 + b" a=b\n", b"6 a=b", b"5 ab\n")
            )
    size = None if rng.random() < 0.8 else base256(rng.choice((1, -1)) * rng.choice(NUMBERS))
    return tar_extra(kind, data, size)


# LMDB.


def change_lmdb(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    page = struct.unpack_from("<I", out, 16 + 24)[0] or 4096
    pages = max(len(out) // page, 1)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(pages) * page
        node = struct.unpack_from("<H", out, min(at + 16, len(out) - 2))[0]
        # Of meta pages; a page's flags, lower and upper; places of nodes; fields of a node.
        fields = rng.choice(
            ((40, 44, 94, 128, 136, 144), (10, 12, 14), (16, 18, 20), (0, 2, 4, 6, 8))
        )
        offset = rng.choice(fields) + (node if fields[0] == 0 else 0)
        at = rng.choice((0, page)) if fields[0] == 40 else at
        size = rng.choice((2, 2, 4, 8))
        value = rng.choice((*NUMBERS, *range(8), 16, 18, 20, 64, 255)) & ((1 << 8 * size) - 1)
        out[at + offset : at + offset + size] = value.to_bytes(size, "little")
        if rng.random() < 0.1:  # one page instead of another
            other = rng.randrange(pages) * page
            out[at : at + page] = out[other : other + page]
    return bytes(out[: len(data)])


def branches_that_share_pages(levels: int = 24, page: int = 4096) -> bytes:
    """A ``data.mdb`` whose tree has a few pages, and 2^levels ways to its leaf."""
    meta = struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 20)
    tree = struct.pack("<IHHQQQQQ", page, 0, 0, 0, 0, 0, 0, (1 << 64) - 1)
    main = struct.pack("<IHHQQQQQ", 0, 0, levels, levels, 1, 0, 0, 2)
    last = struct.pack("<QQ", levels + 2, 1)
    head = struct.pack("<QHHHH", 0, 0, 8, 0, 0) + meta + tree + main + last
    out = head.ljust(page, b"\0") * 2
    for level in range(levels):
        child = level + 3
        node = struct.pack("<HHHH", child & 0xFFFF, child >> 16, 0, 0)
        header = struct.pack("<QHHHH", level + 2, 0, 1, 20, page - 16)
        body = header + struct.pack("<HH", page - 16, page - 8)
        out += body.ljust(page - 16, b"\0") + node * 2
    empty = struct.pack("<QHHHH", levels + 2, 0, 2, 16, page)
    return out + empty.ljust(page, b"\0")


# Parquet: a footer is a struct in Thrift's compact protocol.


class Thrift:
    """Reads and writes Thrift's compact protocol, as lists of [field, type, value]."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            self._at += 1
            return self._data[self._at - 1]
        if kind in (4, 5, 6):
            return self.varint()
        if kind == 7:
            self._at += 8
            return self._data[self._at - 8 : self._at]
        if kind == 8:
            length = self.varint()
            self._at += length
            return self._data[self._at - length : self._at]
        if kind in (9, 10):
            head = self._data[self._at]
            self._at += 1
            count = head >> 4 if head >> 4 != 15 else self.varint()
            return [head & 15, [self.value(head & 15) for _ in range(count)]]
        assert kind == 12, kind
        return self.struct()

    def struct(self) -> list[list[Any]]:
        fields: list[list[Any]] = []
        number = 0
        while head := self._data[self._at]:
            self._at += 1
            if head >> 4:
                number += head >> 4
            else:
                zigzag = self.varint()
                number = zigzag >> 1 ^ -(zigzag & 1)
            fields.append([number, head & 15, self.value(head & 15)])
        self._at += 1
        return fields


def write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def write_thrift(kind: int, value: Any) -> bytes:
    if kind in (1, 2):
        return b""
    if kind in (3, 7):
        return bytes([value]) if kind == 3 else bytes(value)
    if kind in (4, 5, 6):
        return write_varint(value)
    if kind == 8:
        return write_varint(len(value)) + bytes(value)
    if kind in (9, 10):
        inner, values = value
        # The long form of a count, which is right for any.
        head = bytes([0xF0 | inner]) + write_varint(len(values))
        return head + b"".join(write_thrift(inner, each) for each in values)
    out = b""
    for number, inner, each in value:
        zigzag = number << 1 ^ number >> 63
        out += bytes([inner]) + write_varint(zigzag) + write_thrift(inner, each)
    return out + b"\0"


def change_thrift(fields: list[list[Any]], rng: random.Random) -> None:
    if not fields:
        return
    at = rng.randrange(len(fields))
    _, kind, value = fields[at]
    if rng.random() < 0.1:
        fields[at : at + rng.randrange(2)] = [[rng.randrange(20), kind, value]] * rng.randrange(2)
    elif kind in (4, 5, 6):
        fields[at][2] = rng.choice((*range(40), *(n << 1 for n in NUMBERS))) & ((1 << 64) - 1)
    elif kind == 8:
        fields[at][2] = rng.choice((b"", b"\xff\xfe", value * 50, damage(value, rng), b"image"))
    elif kind == 9:
        inner, values = value
        if not values or rng.random() < 0.2:
            values *= rng.choice((0, 2, 50))
        elif inner == 12:
            change_thrift(rng.choice(values), rng)
        elif inner in (4, 5, 6):
            values[rng.randrange(len(values))] = rng.randrange(40)
        elif inner == 8:
            values[rng.randrange(len(values))] = rng.choice((b"", b"\xff", b"x" * 5_000))
    elif kind == 12:
        change_thrift(value, rng)


def change_parquet(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], data[-8 - length : -8]
    if rng.random() < 0.2:
        body = b"PAR1" + damage(body[4:], rng)
    try:
        fields = Thrift(footer).struct()
    except (IndexError, AssertionError):
        return damage(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        change_thrift(fields, rng)
    footer = write_thrift(12, fields)
    size = len(footer) if rng.random() < 0.95 else rng.choice(NUMBERS) & 0xFFFFFFFF
    return body + footer + struct.pack("<I", size) + b"PAR1"


# Datasets.


def refit(dataset: Path, name: str) -> None:
    path = dataset / name
    size, crc = path.stat().st_size, f"{crc32c_file(path):08x}"

    def change(fields: dict[str, Any]) -> None:
        for entry in (fields["index"], *fields["files"]):
            if entry["name"] == name:
                entry.update(size=size, crc32c=crc)

    edit_manifest(dataset, change)


def change_index(data: bytes, rng: random.Random) -> bytes:
    """An index whose records have other values, and the checksums that fit."""
    out = bytearray(data)
    rows = int.from_bytes(data[16:24], "little")
    fields = ((0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4), (40, 4), (44, 4),
              (48, 2), (50, 2), (52, 4), (56, 1), (57, 1))  # fmt: skip
    for _ in range(rng.choice((1, 1, 2))):
        row = rng.randrange(rows)
        at = 64 + 64 * row
        offset, size = rng.choice(fields)
        value = rng.choice((*NUMBERS, *range(4))) & ((1 << 8 * size) - 1)
        out[at + offset : at + offset + size] = value.to_bytes(size, "little")
        crc = exchanged(crc32c(data[32:40] + row.to_bytes(8, "little") + out[at : at + 60]))
        out[at + 60 : at + 64] = crc.to_bytes(4, "little")
    if rng.random() < 0.1:
        struct.pack_into("<Q", out, rng.choice((16, 24)), rng.choice(NUMBERS))
        out[60:64] = crc32c(bytes(out[:60])).to_bytes(4, "little")
    return bytes(out)


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".tar": change_tar,
    ".mdb": change_lmdb,
    ".parquet": change_parquet,
    ".rows": change_index,
}


def change_dataset(dataset: Path, rng: random.Random) -> Path:
    """Changes a file of a dataset, or its manifest; the checksums fit. Returns the file."""
    fields = load_manifest(dataset)
    names = [entry["name"] for entry in fields["files"] if (dataset / entry["name"]).exists()]
    which = rng.random()
    if which < 0.2:
        path = dataset / "_dataset.json"
        path.write_bytes(change_manifest(path.read_bytes(), rng))
        return path
    name = fields["index"]["name"] if which < 0.4 or not names else rng.choice(names)
    path = dataset / name
    path.write_bytes(CHANGES.get(path.suffix, damage)(path.read_bytes(), rng))
    refit(dataset, name)
    return path
