"""Source of a tree ``<class>/**/<image>``, read as torchvision's ``ImageFolder`` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.converters.records import ImageSource, Record
from fastdata.converters.trees import LeftOut, Tree, class_records, source_tree

from fastdata.errors import SourceError
from fastdata.remote.urls import is_url
from fastdata.storage.peek import lacks_data, peek


class ImageFolder(ImageSource):
    """Source of the images of a tree whose top folders are the classes.

    Classes, labels and order are torchvision's. A key is the image's path below ``root`` without
    its extension. ``allow_empty``: a class may have no images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        hint = "Images must be in <root>/<class>/; give the folder above with --root."
        if not is_url(root) and not peek(root).source:
            raise lacks_data(Path(root).absolute(), "has no class folders", hint)
        self._tree = source_tree(root, storage_options)
        self._allow_empty = allow_empty
        self.classes = self._tree.classes()
        if not self.classes:
            raise lacks_data(str(self._tree), "has no class folders", hint)
        self.origin = {"kind": "imagefolder", "root": str(self._tree)}
        self.inputs = [self._tree.location]
        self.root = self._tree.root

    def shards(self) -> list[ClassFolders]:
        return class_shards(self._tree, self.classes, self.classes, allow_empty=self._allow_empty)


class FlatFolder(ImageSource):
    """Source of the images of a folder without class folders; they have no labels."""

    def __init__(
        self, root: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._tree = source_tree(root, storage_options)
        self.inputs, self.root = [self._tree.location], self._tree.root
        self.origin = {"kind": "images", "root": str(self._tree)}

    def records(self) -> Iterator[Record]:
        for record in class_records(self._tree, ".", 0, Counter()):
            yield record._replace(key=record.key.removeprefix("./"))


#: Most shards of a listing: tasks, and files.
_MOST_SHARDS = 1024


class ClassFolders(NamedTuple):
    """Some class folders of a tree, with their labels: a shard of its listing."""

    tree: Tree
    folders: tuple[tuple[str, int], ...]
    allow_empty: bool
    left_out: LeftOut

    def records(self) -> Iterator[Record]:
        """Yield the images, one class after the other."""
        for name, label in self.folders:
            has_images = False
            for record in class_records(self.tree, name, label, self.left_out):
                has_images = True
                yield record
            if not has_images and not self.allow_empty:
                raise SourceError(
                    f"{self.tree / name}: this class has no images",
                    "Remove the folder, or keep an empty class with --allow-empty.",
                )


def class_shards(
    tree: Tree, folders: Sequence[str], classes: Sequence[str], *, allow_empty: bool
) -> list[ClassFolders]:
    """Return shards of some class folders, labelled by rank in ``classes``."""
    labels = {name: label for label, name in enumerate(classes)}
    labelled = tuple((name, labels[name]) for name in folders)
    size = -(-len(labelled) // _MOST_SHARDS)
    return [
        ClassFolders(tree, labelled[at : at + size], allow_empty, Counter())
        for at in range(0, len(labelled), max(size, 1))
    ]
