"""Datasets on the Hugging Face Hub as sources: their configs, splits and kinds of files.

Files are chosen as ``datasets.load_dataset`` does: by ``configs:`` in README.md, else by the words
for splits in the names of folders and files. No script of a dataset is run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from fastdata.converters.options import require_arguments
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import ImageSource
from fastdata.converters.table import TableImages
from fastdata.converters.table_files import read_table
from fastdata.converters.webdataset import WebDataset

from fastdata.errors import SourceError, UsageError
from fastdata.remote.filesystem import list_files, read_bytes
from fastdata.remote.hub import HubPlace, pinned
from fastdata.remote.urls import join_url
from fastdata.storage.encodings import is_image_name

#: Words for splits in names, as `datasets` knows them.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
#: Names of files of one split: ``data/train-00000-of-00002.parquet``.
_OF_SPLIT = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*")
#: Kinds of datasets' files.
_KINDS = ("parquet", "webdataset", "imagefolder")
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
#: End of the names of columns of paths in metadata.
_FILE_NAME = "file_name"
_README = "README.md"
#: Files of a dataset, by config and split.
_Splits = Mapping[str, Mapping[str, Sequence[str]]]


def hub_source(
    url: str,
    kind: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> ImageSource:
    """Open a dataset on the Hub as a source, at the commit that its revision is now."""
    place = pinned(url, storage_options)
    root = place._replace(path="").url
    files = list(list_files(root, storage_options))
    chosen = _choose(place, files, _configs(root, files, storage_options))
    kind = _kind_of(chosen, place.shown) if kind is None else kind
    arguments: dict[str, Any] = {"storage_options": storage_options, **options}
    if kind not in _KINDS:
        raise UsageError(f"--kind {kind}: the Hub has none", f"Use {', '.join(_KINDS)}.")
    names = [name for name in chosen if _is_of(kind, name)]
    require_arguments(kind, set(options) - ({"fields"} if kind == "imagefolder" else set()))
    if kind == "imagefolder":
        return _images(names, chosen, root, arguments)
    opens: Any = WebDataset if kind == "webdataset" else partial(ParquetImages, extents=True)
    source: Any = opens("::".join(join_url(root, name) for name in names), **arguments)
    source.origin = {**source.origin, "root": join_url(root, place.path).rstrip("/")}
    return source  # type: ignore[no-any-return]


def _is_of(kind: str, name: str) -> bool:
    if any(part.startswith((".", "_")) for part in name.split("/")):
        return False
    suffixes = {"parquet": ".parquet", "webdataset": ".tar"}
    if kind in suffixes:
        return name.endswith(suffixes[kind]) and PurePosixPath(name).name not in _METADATA
    return is_image_name(name)


def _kind_of(names: Iterable[str], url: str) -> str:
    counts = Counter(kind for name in names for kind in _KINDS if _is_of(kind, name))
    if counts:
        return counts.most_common(1)[0][0]
    suffixes = Counter(PurePosixPath(name).suffix for name in names)
    there = ", ".join(f"{count} {suffix or 'other'}" for suffix, count in suffixes.most_common(5))
    raise SourceError(
        f"{url}: has no Parquet files, tars or images (it has: {there or 'no files'})",
        "Load it by datasets.load_dataset; ImageDataset reads the datasets.Dataset in place.",
    )


def _images(
    images: Sequence[str], files: Sequence[str], root: str, arguments: dict[str, Any]
) -> TableImages:
    """Return the source of single images, with their metadata or the classes of their folders."""
    metadata = [name for name in files if PurePosixPath(name).name in _METADATA]
    if not metadata:
        names = [PurePosixPath(name).parent.name for name in images]
        columns = {_FILE_NAME: images}
        if len(set(names)) > 1:  # `datasets` drops the labels of a single class
            columns["label"] = names
        return TableImages(pa.table(columns), root, path=_FILE_NAME, **arguments)
    tables = [_metadata(root, name, arguments["storage_options"]) for name in metadata]
    table = pa.concat_tables(tables, promote_options="default")
    paths = [name for name in table.column_names if name.endswith(_FILE_NAME)]
    first = _FILE_NAME if _FILE_NAME in paths else paths[0]
    others = [name for name in paths if name != first]
    origin = {"kind": "imagefolder", "root": root}
    return TableImages(table, root, path=first, files=others, origin=origin, **arguments)


def _metadata(root: str, name: str, storage_options: Mapping[str, Any] | None) -> pa.Table:
    """Return the rows of a file of metadata, with paths below the root."""
    url = join_url(root, name)
    table = read_table(url, storage_options, ())
    folder, has_paths = PurePosixPath(name).parent, False
    for at, column in enumerate(table.column_names):
        if column.endswith(_FILE_NAME):
            paths = [one and str(folder / one) for one in table[column].to_pylist()]
            table, has_paths = table.set_column(at, column, pa.array(paths, pa.string())), True
    if not has_paths:
        raise SourceError(f"{url}: has no column {_FILE_NAME}", "Convert the table by --path.")
    return table


def _choose(place: HubPlace, files: Sequence[str], configs: _Splits) -> Sequence[str]:
    below = [name for name in files if f"{name}/".startswith(f"{place.path}/")]
    if place.path and below:
        depth = len(place.path) + 1
        names = {name[depth:] or name: name for name in below}
        named = _by_names([*names])
        return [names[one] for one in _only(named, "splits", place)]
    asked = list(filter(None, place.path.split("/")))
    by_config: _Splits = configs or {"default": _by_names(files)}
    config = "default" if "default" in by_config and not (asked and asked[0] in by_config) else None
    if asked and asked[0] in by_config:
        config = asked.pop(0)
    if config is None:
        config = _only({name: name for name in by_config}, "configs", place)
    several = by_config[config]
    if len(asked) > 1 or (asked and asked[0] not in several):
        raise UsageError(
            f"{place._replace(path='').shown}: has no folder, config or split {'/'.join(asked)}",
            f"It has {', '.join(dict.fromkeys((*configs, *several)))}.",
        )
    return several[asked[0]] if asked else _only(several, "splits", place)


def _only(choices: Mapping[str, Any], what: str, place: HubPlace) -> Any:
    """Return the one value; raise UsageError if there are several."""
    if len(choices) == 1:
        return next(iter(choices.values()))
    if not choices:
        raise SourceError(f"{place.shown}: has no files of data", "Check the URL.")
    example = f"{place.shown}/{next(iter(choices))}"
    raise UsageError(f"{place.shown}: has the {what} {', '.join(choices)}", f"Name one: {example}")


def _by_names(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each split by words in names, of the files with data."""
    data = [
        name
        for name in files
        if any(_is_of(kind, name) for kind in _KINDS) or PurePosixPath(name).name in _METADATA
    ] or [*files]
    sharded = {name: match[1] for name in data if (match := _OF_SPLIT.fullmatch(name))}
    folders = {name: split for name in data if (split := _split_in(name.rpartition("/")[0]))}
    names = {name: split for name in data if (split := _split_in(name.rpartition("/")[2]))}
    by_split: dict[str, list[str]] = {}
    for name, split in (sharded or folders or names or dict.fromkeys(data, "train")).items():
        by_split.setdefault(split, []).append(name)
    known = [split for split in _WORDS if split in by_split]
    return {split: by_split[split] for split in dict.fromkeys((*known, *sorted(by_split)))}


def _split_in(name: str) -> str | None:
    """Return the split whose word is a word of a name."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((split for split, known in _WORDS.items() if words & {*known}), None)


def _configs(
    root: str, files: Sequence[str], storage_options: Mapping[str, Any] | None
) -> dict[str, dict[str, list[str]]]:
    """Return the files that README.md names, by config and split; none if it names none."""
    if _README not in files:
        return {}
    text = ""
    with suppress(FileNotFoundError, UnicodeDecodeError):
        text = read_bytes(join_url(root, _README), storage_options).decode()
    front = re.match(r"\s*---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    if front is None:
        return {}
    import yaml  # huggingface_hub needs it, too

    try:
        listed = (yaml.safe_load(front[1]) or {}).get("configs") or []
        configs = {str(one.get("config_name", "default")): _patterns(one) for one in listed}
        default = [str(one.get("config_name")) for one in listed if one.get("default")]
    except (yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        what = f"{join_url(root, _README)}: its configs cannot be read: {error}"
        raise SourceError(what, "Name a folder of the dataset in the URL.") from None
    by_config = {}
    for name, patterns in configs.items():
        if patterns is None:
            splits = _by_names(files)
        else:
            splits = {split: _matching(globs, files) for split, globs in patterns.items()}
        by_config["default" if name in default else name] = splits
    return by_config


def _patterns(config: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Return the patterns of a config's splits; None for those in the names of files."""
    folder = str(config.get("data_dir", "")).strip("./")
    files = config.get("data_files")
    if files is None:
        return {"train": [f"{folder}/**"]} if folder else None
    if isinstance(files, str):
        files = [files]
    if isinstance(files, list) and all(isinstance(one, str) for one in files):
        files = {"train": files}
    if isinstance(files, list):
        files = {str(one["split"]): one["path"] for one in files}
    return {
        str(split): [
            str(PurePosixPath(folder, one)) for one in ([of] if isinstance(of, str) else of)
        ]
        for split, of in files.items()
    }


def _matching(patterns: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the files that any pattern matches, in order, as fsspec's globs do."""
    from fsspec.utils import glob_translate

    known = [re.compile(glob_translate(pattern)) for pattern in patterns]
    return [name for name in files if any(one.match(name) for one in known)]
