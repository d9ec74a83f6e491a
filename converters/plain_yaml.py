"""Parser of the subset of YAML that files describing YOLO's datasets use.

The file is a mapping. Values are scalars, lists of scalars, or mappings of scalars, as blocks or in
brackets. All scalars are text, as written: ``yes`` is not a Boolean. Tags, anchors, and scalars of
several lines are errors in the keys that are asked for, and skipped in all others.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeAlias

Value: TypeAlias = "str | list[str] | dict[str, str] | None"

_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s#'"\[\]{},&*!|>%@`-][^#]*?)\s*:(?:\s+(.*))?$""")
_ITEM = re.compile(r"-(?:\s+(.*))?$")
_QUOTED = re.compile(r"""'((?:[^']|'')*)'|"((?:[^"\\]|\\.)*)\"""")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}


def parse_yaml(text: str, wanted: Collection[str]) -> dict[str, Value]:
    """Return the values of some keys of a mapping; keys that it lacks are left out.

    Raises:
        ValueError: It is not in the subset; the message has the line.
    """
    found: dict[str, Value] = {}
    for key, number, lines in _sections(text.removeprefix("\ufeff").splitlines()):
        if key not in wanted:
            continue
        if key in found:
            raise ValueError(f"line {number}: it has the key {key} twice")
        try:
            found[key] = _value([line for line in lines if line.strip()])
        except ValueError as error:
            raise ValueError(f"line {number}: {key}: {error}") from None
    return found


def _sections(lines: list[str]) -> list[tuple[str, int, list[str]]]:
    """Return the key, line number and lines of each top-level entry; the first without its key."""
    found: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        bare = _uncommented(line)
        if not bare.strip() or bare.rstrip() in ("---", "...") or bare.startswith("%"):
            continue
        # A list may have the indentation of its key; so may the end of one in brackets.
        if bare[0] in " \t]}" or _ITEM.match(bare):
            if not found:
                raise ValueError(f"line {number}: it does not begin with a key")
            found[-1][2].append(bare)
            continue
        match = _KEY.match(bare)
        if match is None:
            raise ValueError(f"line {number}: it is not 'key: value'")
        found.append((_scalar(match[1]), number, [match[2] or ""]))
    return found


def _value(lines: list[str]) -> Value:
    """Return the value of an entry's lines.

    Raises:
        ValueError: It is not in the subset.
    """
    if not lines:
        return None
    first = lines[0].strip()
    if first.startswith(("[", "{")):
        return _brackets(" ".join(line.strip() for line in lines))
    if len(lines) == 1 and not _is_nested(lines[0]):
        return _scalar(first)
    indents = {len(line) - len(line.lstrip(" ")) for line in lines}
    if len(indents) > 1 or not _is_nested(lines[0]):
        raise ValueError("its value has several levels, or is text of several lines")
    items = [_ITEM.match(line.strip()) for line in lines]
    if all(items):
        return [_scalar(match[1] or "") for match in items if match]
    pairs = [_KEY.match(line.strip()) for line in lines]
    if not all(pairs):
        raise ValueError("its value is neither a list nor a mapping")
    return {_scalar(match[1]): _scalar(match[2] or "") for match in pairs if match}


def _is_nested(line: str) -> bool:
    """Return whether a line is an entry of a list or of an indented mapping."""
    return bool(_ITEM.match(line.strip()) or (line[0] == " " and _KEY.match(line.strip())))


def _brackets(text: str) -> Value:
    """Return the list or mapping of a text in brackets.

    Raises:
        ValueError: It does not end, or has others in it.
    """
    if text[-1] != {"[": "]", "{": "}"}[text[0]]:
        raise ValueError("its brackets do not match")
    parts = _split(text[1:-1])
    if text[0] == "[":
        return [_scalar(part) for part in parts]
    pairs = [_KEY.match(part) for part in parts]
    if not all(pairs):
        raise ValueError("an entry is not 'key: value'")
    return {_scalar(match[1]): _scalar(match[2] or "") for match in pairs if match}


def _split(text: str) -> list[str]:
    """Split at commas outside of quotes; the last may be empty."""
    parts, at = [""], 0
    while at < len(text):
        quoted = _QUOTED.match(text, at) if _begins_scalar(parts[-1]) else None
        if quoted:
            parts[-1] += quoted[0]
            at = quoted.end()
            continue
        if text[at] in "[]{}":
            raise ValueError("it has brackets in brackets")
        if text[at] == ",":
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    parts = [part.strip() for part in parts]
    return parts if parts[-1] else parts[:-1]


def _scalar(text: str) -> str:
    """Return a scalar's text without quotes.

    Raises:
        ValueError: It is not in the subset.
    """
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        if text[:1] in tuple("'\"&*!|>%@`[{") and text:
            raise ValueError(f"{text!r} is neither plain nor quoted text of one line")
        if ": " in text or text.endswith(":") or " #" in text:
            raise ValueError(f"{text!r} is a mapping, or has a comment, in a line")
        return text
    if quoted[1] is not None:
        return quoted[1].replace("''", "'")
    return _ESCAPE.sub(_unescape, quoted[2])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    if code not in _ESCAPES:
        raise ValueError(f"\\{code} is not an escape of YAML")
    return _ESCAPES[code]


def _uncommented(line: str) -> str:
    """Return a line without its comment: a # at its beginning or after a space, not in quotes."""
    at = 0
    while at < len(line):
        quoted = _QUOTED.match(line, at) if _begins_scalar(line[:at]) else None
        if quoted:
            at = quoted.end()
            continue
        if line[at] == "#" and (not at or line[at - 1] in " \t"):
            return line[:at].rstrip()
        at += 1
    return line.rstrip()


def _begins_scalar(before: str) -> bool:
    """Return whether a quote behind a text begins a scalar; within one it is a letter."""
    before = before.strip()
    return before in ("", "-") or before[-1] in ",[{:"
