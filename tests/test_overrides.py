"""Transforms, folders and functions of other libraries that were overridden.

Each patch leaves a mark: every pixel is 7. torch's own loader shows it, so fastdata's must.
"""

from __future__ import annotations

import copy
import functools
import importlib
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
from fastdata.transforms.originals import changed  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")

Patch = pytest.MonkeyPatch
SEVEN = torch.full((3, 8, 8), 7, dtype=torch.uint8)


@pytest.fixture(params=["v1", "v2"])
def tv(request: pytest.FixtureRequest) -> Any:
    transforms = import_torchvision().transforms
    return transforms if request.param == "v1" else transforms.v2


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


@pytest.mark.parametrize(
    "name",
    ["forward", "transform", "make_params", "_call_kernel", "get_params", "_transformed_types"],
)
def test_what_is_set_on_an_object(tv: Any, name: str) -> None:
    transform = tv.RandomResizedCrop(8)
    if not hasattr(transform, name):
        pytest.skip("v1 has none")
    setattr(transform, name, () if name == "_transformed_types" else seven)
    assert name in explained(tv.Compose([transform, tv.PILToTensor(), tv.CenterCrop(8)]))


def test_forward_of_an_object_leaves_its_mark(tv: Any) -> None:
    transform = tv.RandomResizedCrop(8)
    transform.forward = seven
    shows_the_mark(folder(transform), "RandomResizedCrop", "its forward was replaced")
    both = torch.nn.Sequential(tv.RandomResizedCrop(8), tv.RandomHorizontalFlip())
    both.forward = seven
    shows_the_mark(folder(both), "Sequential", "its forward was replaced")


def test_a_constructor_that_sets_forward(tv: Any) -> None:
    class Marked(tv.CenterCrop):  # type: ignore[name-defined,misc]
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.forward = seven

    shows_the_mark(folder(Marked(8)), "its forward was replaced")


@pytest.mark.parametrize("register", ["forward_hook", "forward_pre_hook"])
def test_hooks(tv: Any, register: str) -> None:
    for transform in (tv.CenterCrop(8), torch.nn.Sequential(tv.CenterCrop(8))):
        getattr(transform, f"register_{register}")(lambda module, *given: None)
        assert register in explained(tv.Compose([transform, tv.CenterCrop(8)]))


def test_global_hooks(tv: Any) -> None:
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        assert "global_forward_hooks" in explained(crop(tv))
    finally:
        hook.remove()
    assert explained(crop(tv)).startswith("native")


def test_a_parameter_that_another_was_derived_from(tv: Any) -> None:
    transform = tv.AutoAugment()
    name = "policies" if hasattr(transform, "policies") else "_policies"
    getattr(transform, name)[0] = getattr(transform, name)[1]
    assert name in explained(tv.Compose([tv.CenterCrop(8), transform]))


def mark(self: Any, image: Any) -> Any:
    return SEVEN


@pytest.mark.parametrize(
    "make",
    [
        lambda kind: kind((0.5,) * 3, (0.5,) * 3),
        lambda kind: kind(1.0),
        lambda kind: kind((ours.Resize((8, 8)),), 1.0),
        lambda kind: kind(ours.Resize((8, 8)), count=2),
        lambda kind: kind(8),
        lambda kind: kind([ours.Resize((8, 8))]),
    ],
    ids=["Normalize", "RandomErasing", "RandomApply", "Views", "CenterCrop", "Compose"],
)
def test_what_derives_from_a_transform_of_ours(
    tv: Any, make: Any, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.split("-")[1]
    marked = make(type("Marked", (getattr(ours, name),), {"__call__": mark}))
    shows_the_mark(folder(tv.Compose([tv.Resize((8, 8)), marked])), "Marked", "cannot be done here")
    shows_the_mark(folder(marked), "Marked", "cannot be done here")
    with pytest.raises(UsageError, match="Marked"):
        DataLoader(folder(ours.Compose([ours.CenterCrop(8), marked])), 4)


def test_a_list_that_is_called(tv: Any) -> None:
    marked = type("Marked", (list,), {"__call__": mark})([tv.Resize((8, 8)), tv.PILToTensor()])
    shows_the_mark(folder(marked), "Marked")
    shows_the_mark(folder(tv.Compose([marked, tv.CenterCrop(8)])), "Marked")


# Classes and functions, before or after the objects are made.


def of(path: str, value: Callable[[Any], Any] = lambda original: seven) -> Any:
    """A patch of an attribute; the value is made of the original one."""

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
        original = vars(holder)[name] if isinstance(holder, type) else getattr(holder, name)
        monkeypatch.setattr(holder, name, value(original))
        return name

    return pytest.param(patch, id=path)


def wrapped(original: Any) -> Any:
    """A wrapper that lies about its module and name."""
    return functools.wraps(getattr(original, "__func__", original))(seven)


def copied(original: FunctionType, **changes: Any) -> Any:
    """The same code with other defaults or globals."""
    made = FunctionType(original.__code__, dict(original.__globals__))
    made.__kwdefaults__, made.__defaults__ = original.__kwdefaults__, original.__defaults__
    made.__module__, made.__qualname__ = original.__module__, original.__qualname__
    return made


V1 = "torchvision.transforms"
PATCHES_V1 = [
    of(f"{V1}.transforms.RandomResizedCrop.forward"),
    of(f"{V1}.transforms.RandomResizedCrop.forward", wrapped),
    of(f"{V1}.transforms.RandomResizedCrop.forward", copied),
    of(f"{V1}.transforms.RandomResizedCrop.get_params", lambda _: staticmethod(seven)),
    of(
        f"{V1}.transforms.RandomResizedCrop.get_params",
        lambda _: vars(import_torchvision().transforms.RandomCrop)["get_params"],
    ),
    of(f"{V1}.transforms.Compose.__call__"),
    of(f"{V1}.transforms.Compose.__call__", functools.partialmethod),
    of(f"{V1}.transforms.PILToTensor.__call__"),
    of(f"{V1}.transforms.F"),
    of(f"{V1}.functional.resized_crop"),
    of(f"{V1}.functional.crop", wrapped),
    of(f"{V1}.functional.resize", lambda _: import_torchvision().transforms.functional.hflip),
    of(f"{V1}.functional.F_pil"),
    of(f"{V1}.functional.pil_modes_mapping", lambda table: {**table, "more": 1}),
    of(f"{V1}._functional_pil.resize", functools.partial),
    of(f"{V1}._functional_pil._is_pil_image"),
    of("torch.nn.modules.module.Module.__call__"),
    of("torch.nn.modules.module.Module._call_impl"),
    of("torch.nn.modules.module.Module.__getattr__", lambda _: object.__getattribute__),
]
V2 = "torchvision.transforms.v2"
PATCHES_V2 = [
    of(f"{V2}._geometry.RandomResizedCrop.make_params"),
    of(f"{V2}._geometry.RandomResizedCrop.transform", wrapped),
    of(f"{V2}._transform.Transform.forward"),
    of(f"{V2}._transform.Transform._call_kernel"),
    of(f"{V2}._transform.Transform._transformed_types", lambda _: ()),
    of(f"{V2}._transform._get_kernel"),
    of(f"{V2}._transform.tree_flatten"),
    of(f"{V2}._container.Compose.forward"),
    of(f"{V2}._geometry.query_size", lambda _: lambda inputs: (9, 9)),
    of(f"{V2}.functional.resized_crop"),
    of(f"{V2}.functional._geometry._crop_image_pil", copied),
    of("torch.nn.modules.module.Module.__call__"),
]


@pytest.mark.parametrize("patch", PATCHES_V1)
def test_patches_of_v1(patch: Callable[[Patch], str], monkeypatch: Patch) -> None:
    transform = crop(import_torchvision().transforms)
    name = patch(monkeypatch)
    told = explained(transform)
    assert not told.startswith("native") and name in told and "not what its library" in told
    monkeypatch.undo()
    assert explained(transform).startswith("native")


@pytest.mark.parametrize("patch", PATCHES_V2)
def test_patches_of_v2(patch: Callable[[Patch], str], monkeypatch: Patch) -> None:
    transform = crop(import_torchvision().transforms.v2)
    name = patch(monkeypatch)
    told = explained(transform)
    assert not told.startswith("native") and name in told and "not what its library" in told
    monkeypatch.undo()
    assert explained(transform).startswith("native")


def test_patched_calls_leave_their_mark(tv: Any, monkeypatch: Patch) -> None:
    name = "__call__" if "__call__" in vars(tv.Compose) else "forward"
    monkeypatch.setattr(tv.Compose, name, seven)
    shows_the_mark(folder(crop(tv)), f"Compose.{name}")


def test_a_patched_function_that_two_transforms_use(tv: Any, monkeypatch: Patch) -> None:
    """hflip becomes vflip, of the same library; a pipeline without a flip stays native."""
    functional = tv.functional
    names = {"v1": "hflip", "v2": "horizontal_flip"}
    name = names["v2" if tv.__name__.endswith("v2") else "v1"]
    monkeypatch.setattr(functional, name, functional.vflip)
    flips = tv.Compose([tv.CenterCrop(8), tv.RandomHorizontalFlip(1.0), tv.PILToTensor()])
    assert f"functional.{name}" in explained(flips)
    assert explained(crop(tv)).startswith("native")
    want, got = (
        next(iter(kind(folder(flips), 4)))[0] for kind in (torch.utils.data.DataLoader, DataLoader)
    )
    assert torch.equal(want, got)


def test_a_kernel_in_the_registry(monkeypatch: Patch) -> None:
    v2 = import_torchvision().transforms.v2
    registry = v2.functional._utils._KERNEL_REGISTRY
    image = importlib.import_module("PIL.Image").Image
    monkeypatch.setitem(registry[v2.functional.resized_crop], image, seven)
    assert "resized_crop for Image" in explained(crop(v2))


def test_defaults_and_tables_changed_in_place(tv: Any, monkeypatch: Patch) -> None:
    resize = import_torchvision().transforms.functional.resize
    if "v2" not in tv.__name__:
        monkeypatch.setattr(resize, "__defaults__", (0, None, False))
        assert "the defaults of" in explained(crop(tv))
        monkeypatch.undo()
    else:
        space = tv.TrivialAugmentWide._AUGMENTATION_SPACE
        monkeypatch.setitem(space, "Identity", space["ShearX"])
        transform = tv.Compose([tv.CenterCrop(8), tv.TrivialAugmentWide()])
        assert "_AUGMENTATION_SPACE" in explained(transform)


def test_a_global_that_hides_a_builtin(monkeypatch: Patch) -> None:
    tv = import_torchvision().transforms
    monkeypatch.setattr(tv.transforms, "range", lambda n: (), raising=False)
    assert "torchvision.transforms.transforms.range" in explained(crop(tv))


def test_a_class_in_the_place_of_the_librarys(tv: Any, monkeypatch: Patch) -> None:
    class RandomResizedCrop(tv.RandomResizedCrop):  # type: ignore[name-defined,misc]
        pass

    RandomResizedCrop.forward = seven  # type: ignore[attr-defined]
    RandomResizedCrop.__module__ = tv.RandomResizedCrop.__module__
    RandomResizedCrop.__qualname__ = "RandomResizedCrop"
    monkeypatch.setattr(tv, "RandomResizedCrop", RandomResizedCrop)
    shows_the_mark(folder(RandomResizedCrop(8)))


@pytest.mark.parametrize("name", ["__getattribute__", "__setstate__", "forward"])
def test_what_is_added_to_a_class(tv: Any, name: str, monkeypatch: Patch) -> None:
    original = getattr(tv.CenterCrop, name, seven)
    monkeypatch.setattr(tv.CenterCrop, name, lambda *given: original(*given), raising=False)
    assert f"CenterCrop.{name}" in explained(tv.CenterCrop(8))


def test_another_class_put_on_an_object(tv: Any) -> None:
    """It does what that class does, or lacks its parameters: never what its first class did."""
    transform = tv.RandomHorizontalFlip()
    transform.__class__ = tv.RandomResizedCrop
    assert "its arguments are not known" in explained(tv.Compose([transform, tv.CenterCrop(8)]))


def test_what_looks_on_is_no_override(tv: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tv.RandomResizedCrop, "__repr__", seven)
    monkeypatch.setattr(tv.functional, "gaussian_blur", seven)
    transform = crop(tv)
    transform.note = seven  # nothing of the library's
    assert explained(transform).startswith("native")


def test_torch_compile(tv: Any) -> None:
    """It replaces methods of torch.nn.Module for the rest of the process."""
    assert torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1)).shape == (1,)
    assert torch.nn.Module.__init__.__module__ == "torch._dynamo.mutation_guard"
    assert explained(crop(tv)).startswith("native")


@pytest.mark.parametrize("name", ["resize", "convert", "transpose"])
def test_patched_methods_of_pillows_images(tv: Any, name: str, monkeypatch: Patch) -> None:
    pillow = importlib.import_module("PIL.Image")
    marked = pillow.new("RGB", (8, 8), (7, 7, 7))
    dataset = folder(
        tv.Compose([tv.Resize((8, 8)), tv.RandomHorizontalFlip(1.0), tv.PILToTensor()])
    )
    loader = DataLoader(dataset, 4)
    assert loader.explain().startswith("native")
    original = getattr(pillow.Image, name)
    monkeypatch.setattr(pillow.Image, name, functools.wraps(original)(lambda *_, **__: marked))
    assert (next(iter(loader))[0] == 7).all()
    shows_the_mark(dataset, "is not what Pillow defines")
    monkeypatch.undo()
    assert DataLoader(dataset, 4).explain().startswith("native")


@pytest.mark.parametrize("name", ["ImageOps.solarize", "ImageOps._lut", "ImageEnhance.Color"])
def test_patched_modules_of_pillow(name: str, monkeypatch: Patch) -> None:
    tv = import_torchvision().transforms
    place, own = name.split(".")
    module = importlib.import_module(f"PIL.{place}")
    step = tv.RandomSolarize(9, 1.0) if place == "ImageOps" else tv.ColorJitter(saturation=0.5)
    known = tv.Compose([tv.CenterCrop(8), step, tv.PILToTensor()])
    solarize = importlib.import_module("PIL.ImageOps").solarize
    users = tv.Compose([tv.CenterCrop(8), lambda image: solarize(image), tv.PILToTensor()])
    assert explained(known).startswith("native") and explained(users).startswith("native")
    monkeypatch.setattr(module, own, seven)
    assert name in explained(known)
    assert explained(users).startswith("native") == (place != "ImageOps")
    assert explained(crop(tv)).startswith("native")


# Datasets.


@pytest.mark.parametrize("name", ["__getitem__", "__len__"])
def test_a_patched_folder_class(name: str, monkeypatch: Patch) -> None:
    dataset = folder(crop(import_torchvision().transforms))
    kind = importlib.import_module("torchvision.datasets.folder").DatasetFolder
    original = getattr(kind, name)
    mark = (lambda self, index: (SEVEN, 0)) if name == "__getitem__" else lambda self: 4
    monkeypatch.setattr(kind, name, mark)
    told = DataLoader(dataset, 4).explain()
    assert f"DatasetFolder.{name} is not what its library defines" in told
    if name == "__getitem__":
        shows_the_mark(dataset)
    monkeypatch.setattr(kind, name, original)
    assert DataLoader(dataset, 4).explain().startswith("native")


@pytest.mark.parametrize("name", ["pil_loader", "default_loader"])
def test_a_patched_loader_of_files(name: str, monkeypatch: Patch) -> None:
    tv = import_torchvision().transforms
    module = importlib.import_module("torchvision.datasets.folder")
    image = importlib.import_module("PIL.Image").new("RGB", (9, 9), (7, 7, 7))
    original = getattr(module, name)
    dataset = folder(crop(tv))
    monkeypatch.setattr(module, name, functools.wraps(original)(lambda path: image))
    if name == "default_loader":
        dataset.loader = module.default_loader
    shows_the_mark(dataset, name)


def test_a_patch_between_two_epochs(monkeypatch: Patch) -> None:
    tv = import_torchvision().transforms
    module = importlib.import_module("torchvision.datasets.folder")
    image = importlib.import_module("PIL.Image").new("RGB", (9, 9), (7, 7, 7))
    dataset = folder(crop(tv))
    loader = DataLoader(dataset, 4)
    assert not all((images == 7).all() for images, _ in loader)
    monkeypatch.setattr(module, "pil_loader", lambda path: image)
    assert all((images == 7).all() for images, _ in loader)
    monkeypatch.undo()
    assert not all((images == 7).all() for images, _ in loader)


def replace_a_part(part: Any, whole: Any) -> None:
    whole.datasets[0] = torch.utils.data.Subset(whole.datasets[1], range(len(part))[::-1])


def replace_a_file(part: Any, whole: Any) -> None:
    whole.datasets[1].samples[0] = whole.datasets[1].samples[-1]


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "indices": lambda part, whole: setattr(part, "indices", [5, 4, 3, 0]),
    "indices in place": lambda part, whole: part.indices.reverse(),
    "a subset's dataset": lambda part, whole: setattr(part, "dataset", reversed_folder()),
    "another part": replace_a_part,
    "order of parts": lambda part, whole: whole.datasets.reverse(),
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
    if name == "order of parts":
        dataset.cumulative_sizes = dataset.cumsum(dataset.datasets)
    wanted = torch.utils.data.DataLoader(dataset, 4)
    for (images, labels), (want, numbers) in zip(loader, wanted, strict=True):
        assert torch.equal(images, want) and torch.equal(labels, numbers)
    assert not all(map(torch.equal, before, (images for images, _ in loader)))


def test_getitems_set_on_a_dataset() -> None:
    """torch asks the object for it, not its class."""
    dataset = folder(crop(import_torchvision().transforms))
    dataset.__getitems__ = lambda indices: [(SEVEN, 0) for _ in indices]
    shows_the_mark(dataset, "has its own __getitems__")


def test_a_patched_subset(monkeypatch: Patch) -> None:
    subset = torch.utils.data.Subset(folder(crop(import_torchvision().transforms)), range(8))
    monkeypatch.setattr(
        torch.utils.data.Subset, "__getitems__", lambda self, found: [(SEVEN, 0) for _ in found]
    )
    shows_the_mark(subset, "Subset.__getitems__")


# Other kinds of roots.


def test_functions_of_modules(monkeypatch: Patch) -> None:
    module = importlib.import_module("torch.utils.data._utils.collate")
    assert not changed(module, "default_collate")
    monkeypatch.setitem(module.default_collate_fn_map, torch.Tensor, seven)
    assert "default_collate_fn_map" in changed(module, "default_collate")
    loader = DataLoader(folder(crop(import_torchvision().transforms)), 4)
    assert "default_collate_fn_map" in loader.explain() and "native" not in loader.explain()[:6]


def test_a_module_without_its_file(monkeypatch: Patch) -> None:
    """Nothing is taken for the original that cannot be compared."""
    tv = import_torchvision().transforms
    originals = importlib.import_module("fastdata.transforms.originals")
    monkeypatch.setattr(originals, "_COPIES", {})
    monkeypatch.setattr(originals, "_VERIFIED", {})
    monkeypatch.setattr(tv.transforms.__spec__.loader, "get_code", lambda name: 1 / 0)
    assert "cannot be compared with its file" in explained(crop(tv))
