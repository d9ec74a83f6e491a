"""Overridden parts of other libraries: a patch makes each pixel 7, as in torch's own loader."""

from __future__ import annotations

import copy
import functools
import importlib
import unittest.mock
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from loader_data import tree
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata import transforms as ours  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")

Patch = pytest.MonkeyPatch
SEVEN = torch.full((3, 8, 8), 7, dtype=torch.uint8)


def seven(*_: Any, **__: Any) -> Any:
    return SEVEN


def crop(tv: Any) -> Any:
    return tv.Compose([tv.RandomResizedCrop(8), tv.PILToTensor()])


def folder(transform: Any) -> Any:
    import_torchvision()
    return importlib.import_module("torchvision.datasets").ImageFolder(str(tree()), transform)


def explained(transform: Any) -> str:
    return DataLoader(ImageDataset(folder(transform)), 4).explain()


def shows_the_mark(dataset: Any, *words: str) -> None:
    """Torch's loader delivers marked pixels, and so does fastdata's, which says why."""
    (want, _), (got, _) = (
        next(iter(kind(dataset, 4))) for kind in (torch.utils.data.DataLoader, DataLoader)
    )
    assert (want == 7).all() and torch.equal(got, want)
    told = DataLoader(dataset, 4).explain()
    assert not told.startswith("native")
    for word in words:
        assert word in told


def test_without_patches_all_is_native(tv: Any) -> None:
    steps = [tv.RandomResizedCrop(8), tv.RandomHorizontalFlip(), tv.PILToTensor()]
    for transform in (tv.Compose(steps), tv.Compose([torch.nn.Sequential(*steps[:2]), steps[2]])):
        assert explained(transform).startswith("native")
        assert explained(copy.deepcopy(transform)).startswith("native")


# Objects.


@pytest.mark.parametrize("name", ["transform", "make_params", "_call_kernel", "_transformed_types"])
def test_what_is_set_on_an_object(v2: Any, name: str) -> None:
    transform = v2.RandomResizedCrop(8)
    setattr(transform, name, () if name == "_transformed_types" else seven)
    assert name in explained(v2.Compose([transform, v2.PILToTensor(), v2.CenterCrop(8)]))


def test_forward_of_an_object_leaves_its_mark(tv: Any) -> None:
    transform = tv.RandomResizedCrop(8)
    transform.forward = seven
    shows_the_mark(folder(transform), "RandomResizedCrop", "its forward was replaced")
    both = torch.nn.Sequential(tv.RandomResizedCrop(8), tv.RandomHorizontalFlip())
    both.forward = seven
    shows_the_mark(folder(both), "Sequential", "its forward was replaced")


def test_subclasses_are_not_the_librarys(tv: Any) -> None:
    """Those that have no more than another constructor neither; they say how to be native."""

    class Eight(tv.CenterCrop):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(8)

    class Native(Eight):
        def __fastdata__(self) -> Any:
            return ours.CenterCrop(8)

    both = [explained(tv.Compose([kind(), tv.PILToTensor()])) for kind in (Eight, Native)]
    assert not both[0].startswith("native") and "__fastdata__" in both[0] and "Eight" in both[0]
    assert both[1].startswith("native")


@pytest.mark.parametrize("register", ["forward_hook", "forward_pre_hook"])
def test_hooks(tv: Any, register: str) -> None:
    for transform in (tv.CenterCrop(8), torch.nn.Sequential(tv.CenterCrop(8))):
        getattr(transform, f"register_{register}")(lambda module, *given: None)
        assert register in explained(tv.Compose([transform, tv.CenterCrop(8)]))


def test_a_hook_within_another_transform_between_two_epochs(v2: Any) -> None:
    flip = v2.RandomHorizontalFlip(1.0)
    dataset = folder(v2.Compose([v2.CenterCrop(8), v2.PILToTensor(), v2.RandomApply([flip], 1.0)]))
    loader = DataLoader(dataset, 4)
    assert loader.explain().startswith("native")
    flip.register_forward_hook(seven)
    assert (next(iter(loader))[0] == 7).all()
    shows_the_mark(dataset, "forward_hooks")
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        assert "global_forward_hooks" in explained(crop(v2))
    finally:
        hook.remove()
    assert explained(crop(v2)).startswith("native")


def test_a_parameter_that_another_was_derived_from(v2: Any) -> None:
    transform = v2.AutoAugment()
    transform._policies[0] = transform._policies[1]
    assert "_policies" in explained(v2.Compose([v2.CenterCrop(8), transform]))


def mark(self: Any, image: Any) -> Any:
    return SEVEN


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Normalize", ((0.5,) * 3, (0.5,) * 3)),
        ("RandomApply", ((ours.Resize((8, 8)),), 1.0)),
        ("Views", (ours.Resize((8, 8)), ours.Resize((8, 8)))),
        ("CenterCrop", (8,)),
        ("Compose", ([ours.Resize((8, 8))],)),
    ],
)
def test_what_derives_from_a_transform_of_ours(v2: Any, name: str, arguments: Any) -> None:
    marked = type("Marked", (getattr(ours, name),), {"__call__": mark})(*arguments)
    shows_the_mark(folder(v2.Compose([v2.Resize((8, 8)), marked])), "Marked", "cannot be done here")
    shows_the_mark(folder(marked), "Marked", "cannot be done here")
    with pytest.raises(UsageError, match="Marked"):
        DataLoader(folder(ours.Compose([ours.CenterCrop(8), marked])), 4)


def test_lists_of_transforms_that_are_called_or_yield_others(v2: Any) -> None:
    class Flips(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            return seven

        __iter__ = None  # type: ignore[assignment]

    marked = type("Marked", (list,), {"__call__": mark})([v2.Resize((8, 8)), v2.PILToTensor()])
    shows_the_mark(folder(marked), "Marked")
    shows_the_mark(folder(v2.Compose([marked, v2.CenterCrop(8)])), "Marked")
    crop, flip = v2.CenterCrop(8), v2.RandomHorizontalFlip()
    choice = v2.Compose([v2.PILToTensor(), crop, v2.RandomChoice(Flips([flip]))])
    shows_the_mark(folder(choice), "RandomChoice", "its transforms are a Flips")


# Classes and functions, before or after the objects are made.


def of(path: str, value: Callable[[Any], Any] = lambda original: seven, shown: str = "") -> Any:
    """A patch of an attribute, made of the original value; and the name that explain() shows."""

    def patch(monkeypatch: Patch) -> str:
        holder_path, _, name = path.rpartition(".")
        parts = holder_path.split(".")
        for end in range(len(parts), 0, -1):
            try:
                holder = importlib.import_module(".".join(parts[:end]))
                break
            except ImportError:
                continue
        holder = functools.reduce(getattr, parts[end:], holder)
        original = vars(holder).get(name) if isinstance(holder, type) else None
        original = getattr(holder, name, None) if original is None else original
        monkeypatch.setattr(holder, name, value(original), raising=False)
        return shown or name

    return pytest.param(patch, id=path)


def wrapped(original: Any) -> Any:
    """A wrapper that lies about its module and name."""
    return functools.wraps(getattr(original, "__func__", original))(seven)


def copied(original: FunctionType) -> Any:
    made = FunctionType(original.__code__, dict(original.__globals__))
    made.__kwdefaults__, made.__defaults__ = original.__kwdefaults__, original.__defaults__
    made.__module__, made.__qualname__ = original.__module__, original.__qualname__
    return made


def passing_on(original: Any) -> Any:
    return lambda *given: original(*given)


V1 = "torchvision.transforms"
PATCHES_V1 = [
    of(f"{V1}.transforms.RandomResizedCrop.forward"),
    of(f"{V1}.transforms.RandomResizedCrop.forward", wrapped),
    of(f"{V1}.transforms.RandomResizedCrop.forward", copied),
    of(f"{V1}.transforms.RandomResizedCrop.get_params", lambda _: staticmethod(seven)),
    of(f"{V1}.transforms.RandomResizedCrop.__setstate__"),
    of(f"{V1}.transforms.F"),
    of(f"{V1}.transforms.range", lambda _: lambda n: (), "transforms.transforms.range"),
    of(f"{V1}.functional.crop", wrapped),
    of(f"{V1}.functional.crop", lambda _: unittest.mock.MagicMock()),
    of(f"{V1}.functional.crop", lambda _: functools.lru_cache(seven)),
    of(f"{V1}.functional.crop", lambda _: torch.no_grad()(seven)),
    of(f"{V1}.functional.F_pil"),
    of(f"{V1}._functional_pil._is_pil_image"),
    of("torch.nn.modules.module.Module._call_impl"),
]
V2 = "torchvision.transforms.v2"
PATCHES_V2 = [
    of(f"{V2}._geometry.RandomResizedCrop.make_params"),
    of(f"{V2}._geometry.RandomResizedCrop.transform", wrapped),
    of(f"{V2}._geometry.RandomResizedCrop.__getattribute__", passing_on),
    of(f"{V2}._transform.Transform.forward"),
    of(f"{V2}._transform._get_kernel"),
    of(f"{V2}._geometry.query_size", lambda _: lambda inputs: (9, 9)),
    of(f"{V2}.functional.resized_crop"),
    of(f"{V2}.functional._geometry._crop_image_pil", copied),
    of("torch.nn.modules.module.Module.__call__"),
]


def is_noticed(patch: Callable[[Patch], str], transform: Any, monkeypatch: Patch) -> None:
    assert explained(transform).startswith("native")
    name = patch(monkeypatch)
    told = explained(transform)
    assert not told.startswith("native") and name in told
    monkeypatch.undo()
    assert explained(transform).startswith("native")


@pytest.mark.parametrize("patch", PATCHES_V1)
def test_patches_of_v1(patch: Callable[[Patch], str], monkeypatch: Patch) -> None:
    is_noticed(patch, crop(import_torchvision().transforms), monkeypatch)


@pytest.mark.parametrize("patch", PATCHES_V2)
def test_patches_of_v2(patch: Callable[[Patch], str], monkeypatch: Patch, v2: Any) -> None:
    is_noticed(patch, crop(v2), monkeypatch)


def test_a_kernel_in_the_registry(monkeypatch: Patch, v2: Any) -> None:
    registry = v2.functional._utils._KERNEL_REGISTRY
    image = importlib.import_module("PIL.Image").Image
    monkeypatch.setitem(registry[v2.functional.resized_crop], image, seven)
    assert "_KERNEL_REGISTRY" in explained(crop(v2))
    monkeypatch.undo()
    # Users may add kernels for classes of their own.
    tensor = type("Own", (importlib.import_module("torchvision.tv_tensors").TVTensor,), {})
    monkeypatch.setitem(registry[v2.functional.resized_crop], tensor, seven)
    assert explained(crop(v2)).startswith("native")


def test_a_function_that_is_added_to_a_list(monkeypatch: Patch, v2: Any) -> None:
    functions: list[Any] = []
    monkeypatch.setattr(v2._geometry, "_FUNCTIONS", functions, raising=False)
    assert explained(crop(v2)).startswith("native")
    functions.append(seven)
    assert "_FUNCTIONS" in explained(crop(v2))


def test_what_looks_on_is_no_override(tv: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tv.RandomResizedCrop, "__repr__", seven)
    transform = crop(tv)
    transform.note = seven  # nothing of the library's
    assert explained(transform).startswith("native")


@pytest.mark.slow
def test_torch_compile(tv: Any) -> None:
    """It replaces methods of torch.nn.Module, and adds functions to torchvision's modules."""
    functional = import_torchvision().transforms.functional
    assert explained(crop(tv)).startswith("native")
    code = torch.compile(lambda image: functional.normalize(image, [0.5], [0.5]), backend="eager")
    code(torch.ones(3, 8, 8))
    try:
        assert any(name.startswith("__compiled_fn_") for name in vars(functional))
        assert explained(crop(tv)).startswith("native")
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("name", ["resize", "convert", "transpose", "open"])
def test_patched_functions_of_pillows_images(v2: Any, name: str, monkeypatch: Patch) -> None:
    pillow = importlib.import_module("PIL.Image")
    marked = pillow.new("RGB", (8, 8), (7, 7, 7))
    steps = [v2.Resize((8, 8)), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()]
    dataset = folder(v2.Compose(steps))
    loader = DataLoader(dataset, 4)
    assert loader.explain().startswith("native")
    holder = pillow if name == "open" else pillow.Image
    original = getattr(holder, name)
    monkeypatch.setattr(holder, name, functools.wraps(original)(lambda *_, **__: marked))
    assert (next(iter(loader))[0] == 7).all()
    shows_the_mark(dataset, "PIL.Image.open" if name == "open" else f"PIL.Image.Image.{name}")
    monkeypatch.undo()
    assert DataLoader(dataset, 4).explain().startswith("native")


@pytest.mark.parametrize(
    "name", ["ImageOps.solarize", "ImageOps._lut", "ImageEnhance.Color", "ImageStat.Stat"]
)
def test_patched_modules_of_pillow(name: str, monkeypatch: Patch) -> None:
    tv = import_torchvision().transforms
    place, own = name.split(".")
    step = tv.RandomSolarize(9, 1.0) if place == "ImageOps" else tv.ColorJitter(saturation=0.5)
    transform = tv.Compose([tv.CenterCrop(8), step, tv.PILToTensor()])
    assert explained(transform).startswith("native")
    monkeypatch.setattr(importlib.import_module(f"PIL.{place}"), own, seven)
    assert name in explained(transform)


# Datasets.


def test_a_patched_folder_class(monkeypatch: Patch, v2: Any) -> None:
    dataset = folder(crop(v2))
    kind = importlib.import_module("torchvision.datasets.folder").DatasetFolder
    monkeypatch.setattr(kind, "__len__", lambda self: 4)
    assert "DatasetFolder.__len__" in DataLoader(dataset, 4).explain()
    monkeypatch.undo()
    monkeypatch.setattr(kind, "__getitem__", lambda self, index: (SEVEN, 0))
    shows_the_mark(dataset, "DatasetFolder.__getitem__")
    monkeypatch.undo()
    assert DataLoader(dataset, 4).explain().startswith("native")


def test_a_patched_loader_of_files_between_two_epochs(monkeypatch: Patch, v2: Any) -> None:
    module = importlib.import_module("torchvision.datasets.folder")
    image = importlib.import_module("PIL.Image").new("RGB", (9, 9), (7, 7, 7))
    dataset = folder(crop(v2))
    loader = DataLoader(dataset, 4)
    assert not all((images == 7).all() for images, _ in loader)
    for name in ("pil_loader", "default_loader"):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, functools.wraps(original)(lambda path: image))
        if name == "default_loader":
            dataset.loader = module.default_loader
        shows_the_mark(dataset, name)
        assert all((images == 7).all() for images, _ in loader)
        monkeypatch.undo()
    dataset.loader = module.default_loader
    assert not all((images == 7).all() for images, _ in loader)


def test_another_way_to_list_files_is_no_override(monkeypatch: Patch) -> None:
    transform = crop(import_torchvision().transforms)
    module = importlib.import_module("torchvision.datasets.folder")
    assert explained(transform).startswith("native")
    original = module.make_dataset
    monkeypatch.setattr(module, "make_dataset", lambda *given, **more: original(*given, **more))
    monkeypatch.setattr(module, "IMG_EXTENSIONS", (*module.IMG_EXTENSIONS, ".heic"))
    assert explained(transform).startswith("native")


def replace_a_part(part: Any, whole: Any) -> None:
    whole.datasets[0] = torch.utils.data.Subset(whole.datasets[1], range(len(part))[::-1])


def replace_a_file(part: Any, whole: Any) -> None:
    whole.datasets[1].samples[0] = whole.datasets[1].samples[-1]


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "indices": lambda part, whole: setattr(part, "indices", [5, 4, 3, 0]),
    "indices in place": lambda part, whole: part.indices.reverse(),
    "a subset's dataset": lambda part, whole: setattr(part, "dataset", reversed_folder()),
    "another part": replace_a_part,
    "files in place": lambda part, whole: whole.datasets[1].samples.reverse(),
    "a file": replace_a_file,
}


def reversed_folder() -> Any:
    found = folder(resize())
    found.samples = found.samples[::-1]
    return found


def resize() -> Any:
    tv = import_torchvision().transforms
    return tv.Compose([tv.CenterCrop(8), tv.PILToTensor()])


@pytest.mark.parametrize("name", CHANGES)
def test_samples_that_change_between_two_epochs(name: str) -> None:
    whole = folder(resize())
    part = torch.utils.data.Subset(folder(whole.transform), [3, 0, 1, 2])
    dataset = torch.utils.data.ConcatDataset([part, whole])
    loader = DataLoader(dataset, 4, require_native=True)
    before = [images for images, _ in loader]
    CHANGES[name](part, dataset)
    wanted = torch.utils.data.DataLoader(dataset, 4)
    for (images, labels), (want, numbers) in zip(loader, wanted, strict=True):
        assert torch.equal(images, want) and torch.equal(labels, numbers)
    assert not all(map(torch.equal, before, (images for images, _ in loader)))


def test_getitems_of_datasets(monkeypatch: Patch) -> None:
    """torch asks the object for it, not its class."""
    dataset = folder(crop(import_torchvision().transforms))
    dataset.__getitems__ = lambda indices: [(SEVEN, 0) for _ in indices]
    shows_the_mark(dataset, "has its own __getitems__")
    subset = torch.utils.data.Subset(folder(crop(import_torchvision().transforms)), range(8))
    monkeypatch.setattr(
        torch.utils.data.Subset, "__getitems__", lambda self, found: [(SEVEN, 0) for _ in found]
    )
    shows_the_mark(subset, "Subset.__getitems__")


# Other kinds of roots.


def test_changed_collation(monkeypatch: Patch) -> None:
    module = importlib.import_module("torch.utils.data._utils.collate")
    loader = DataLoader(folder(crop(import_torchvision().transforms)), 4)
    assert loader.explain().startswith("native")
    for key in (torch.Tensor, tuple):
        monkeypatch.setitem(module.default_collate_fn_map, key, seven)
        assert "default_collate_fn_map" in DataLoader(loader.dataset, 4).explain()
        batch = next(iter(loader))
        assert (batch[0] if key is torch.Tensor else batch) is SEVEN
        monkeypatch.undo()
    # Users may add classes of their own.
    monkeypatch.setitem(module.default_collate_fn_map, type("Own", (), {}), seven)
    assert DataLoader(loader.dataset, 4).explain().startswith("native")
