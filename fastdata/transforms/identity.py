"""Recognition of other libraries' classes and functions by identity; and of ``__fastdata__``.

A class is a library's if the library's module has it under its name, and if the functions that
define it, and those of the modules that it uses, were made in a library's module. An object of the
class is the library's if it has no hooks, and no attribute that hides one of the class.

Changes that need no function of another package are not seen: a constant that was replaced, the
code or defaults of a function, or one function of a library in the place of another.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import getattr_static, isroutine
from itertools import chain
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from fastdata.errors import UsageError
from fastdata.text import class_name

#: Modules that decide what a library's transforms and datasets do, each with its submodules.
_CODE = (
    *("PIL.Image", "PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageStat"),
    "lightly.transforms",
    *("open_clip.transform", "timm.data.auto_augment", "timm.data.loader", "timm.data.mixup"),
    *("timm.data.naflex_transforms", "timm.data.random_erasing", "timm.data.transforms"),
    *("torch.nn.modules.container", "torch.nn.modules.linear", "torch.nn.modules.module"),
    "torch.utils.data._utils.collate",
    *("torch.utils.data.dataset", "torchvision.datasets", "torchvision.transforms"),
    *("torchvision.tv_tensors", "transformers.image_processing_backends"),
    *("transformers.image_processing_base", "transformers.image_processing_utils"),
    *("transformers.image_transforms", "transformers.models"),
)
#: Packages whose functions a library may use.
PACKAGES = {"PIL", "lightly", "numpy", "open_clip", "timm", "torch", "torchvision", "transformers"}
PACKAGES |= {"accimage", "huggingface_hub", "typing_extensions", *sys.stdlib_module_names}
PACKAGES -= {"__main__", "unittest"}

_SAMPLES = ("__getattr__", "__getattribute__", "__getitem__", "__getitems__", "__len__")
#: The names that matter of modules and classes whose other names are replaced without harm.
_ONLY: dict[str, tuple[str, ...]] = {
    "PIL.Image": ("blend", "composite", "eval", "fromarray", "merge", "new", "open"),
    "PIL.Image.Image": (
        *("__array_interface__", "_new", "convert", "copy", "crop", "filter", "getbands"),
        *("getextrema", "histogram", "load", "mode", "paste", "point", "putpalette", "quantize"),
        *("resize", "rotate", "size", "split", "tobytes", "transform", "transpose"),
    ),
    "torch.nn.modules.module": (),
    # Folders were listed when they were made.
    "torchvision.datasets.folder": ("Image", "default_loader", "pil_loader"),
    "torchvision.datasets.folder.DatasetFolder": _SAMPLES,
    "torchvision.datasets.folder.ImageFolder": _SAMPLES,
    # The methods that run when a module is called.
    "torch.nn.modules.module.Module": (
        *("__call__", "__getattr__", "__getattribute__", "_call_impl", "_slow_forward"),
        *("_wrapped_call_impl", "forward"),
    ),
}
#: Names of functions that do not decide what is done to an image.
_IGNORED = ("__repr__", "__str__", "extra_repr")
#: Beginnings of names that Python, or torch.compile, adds to modules.
_ADDED = ("__builtins", "__compiled_fn_", "__import_", "__resume_at_")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Methods that decide what an object of a script, or of a class of torchvision's, does.
_CALLED = frozenset(
    ("__call__", "_get_params", "_transform", "forward", "get_params", "make_params")
)
_METHODS = (staticmethod, classmethod, property)
_CACHED = type(functools.lru_cache(len))


class _Memory(threading.local):
    """Results of functions for classes and modules, for each thread.

    ``places`` has the lists, and the keys and values of the dictionaries, that the results depend
    on; ``values`` has what they held.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.results: dict[tuple[Any, Any], Any] = {}
        self.places: list[Collection[Any]] = []
        self.values: list[Any] = []


_MEMORY = _Memory()


@contextmanager
def fresh_look() -> Iterator[None]:
    """Check the libraries again, unless nothing in them was replaced; once in nested blocks."""
    if not _MEMORY.depth:
        values = [*chain.from_iterable(map(list, _MEMORY.places))]
        if len(values) != len(_MEMORY.values) or not all(map(is_, values, _MEMORY.values)):
            _MEMORY.results, _MEMORY.places, _MEMORY.values = {}, [], []
    _MEMORY.depth += 1
    try:
        yield
    finally:
        _MEMORY.depth -= 1


@functools.cache
def is_code(module: str) -> bool:
    """Return whether changes of a module of this name count."""
    return f"{module}.".startswith(tuple(f"{one}." for one in _CODE))


def name_of(thing: Any) -> str:
    """Return the name of a function or transform for a message."""
    with suppress(Exception):  # a script's __getattr__ may raise anything
        return str(thing.__name__)
    return type(thing).__name__


def name_in(thing: Any, *modules: str) -> str:
    """Return the name under which one of the modules has exactly an object's type.

    "" if none has, or if it was overridden (`override`).
    """
    name: str = type(thing).__name__
    known = any(getattr(sys.modules.get(one), name, None) is type(thing) for one in modules)
    return "" if not known or overridden(thing, type(thing)) else name


class Translators(NamedTuple):
    """Translators of a library's classes, by name: the classes are known by their exact type.

    A `Declined` of `fastdata.transforms.outcomes` in the place of a translator says why the core
    leaves a class to the library.
    """

    modules: tuple[str, ...]
    by_name: Mapping[str, Any]

    def translate(self, transform: Any, kind: str, dtype: str) -> Any:
        """Translate a transform of the library; None for anything else."""
        entry = self.by_name.get(name_in(transform, *self.modules))
        return entry(transform, kind, dtype) if callable(entry) else entry


def override(thing: Any) -> str:
    """Say in a clause which attribute of an object was overridden; "" if none was.

    The object is a library's, or a script's whose class has ``__fastdata__``.
    """
    kind = type(thing)
    if is_code(kind.__module__):
        return overridden(thing, kind)
    if getattr_static(kind, "__fastdata__", None) is None:
        return ""
    return "its forward was replaced" if "forward" in _own(thing) else hooked(thing)


def overridden(thing: Any, kind: type[Any]) -> str:
    """Say in a clause why an object may differ from its library's class; "" if it cannot."""
    for base in kind.__mro__:
        for name in sorted(vars(base).keys() & _own(thing).keys()):
            of_class = vars(base)[name]
            table = name.startswith("_") and isinstance(of_class, (dict, tuple))
            if table or callable(of_class) or isinstance(of_class, _METHODS):
                return f"its {name} was replaced"
    parts = getattr(thing, "transforms", ())
    # A class derived from list may yield other transforms than it holds.
    if type(parts) not in (list, tuple) and not is_code(type(parts).__module__):
        return f"its transforms are a {type(parts).__name__}, not a list"
    return hooked(thing) or changed(kind)


def derived(thing: Any) -> str:
    """Say in a clause which class of a library a script's class derives from; "" for none."""
    bases = (kind for kind in type(thing).__mro__[1:] if is_code(kind.__module__))
    base = next(bases, type(None))
    known = is_code(type(thing).__module__) or not is_code(base.__module__)
    if known or base.__module__ == "torch.nn.modules.module":
        return ""
    return f"it derives from {base.__name__} of {base.__module__}"


def hooked(thing: Any) -> str:
    """Say in a clause which hooks run when an object is called; "" if it is no module of torch."""
    module = sys.modules.get("torch.nn.modules.module")
    if module is None or not isinstance(thing, module.Module):
        return ""
    for name in _HOOKS:
        if vars(thing).get(name):
            return f"it has {name.lstrip('_')}"
    if vars(thing).get("_compiled_call_impl"):
        return "its compile() was called"
    for name in _HOOKS:
        if getattr(module, f"_global{name}", None):
            return f"torch.nn has global{name}"
    return ""


def _own(thing: Any) -> dict[str, Any]:
    """Return an object's own attributes, without its class's."""
    own: dict[str, Any] = getattr(thing, "__dict__", {})
    return own


def is_ours(transform: Any) -> bool:
    """Return whether it is a step; a class that a script derives from one may do anything."""
    kind = type(transform)
    return kind.__module__.startswith("fastdata.") and hasattr(kind, "emit")


def offers(transform: Any) -> bool:
    """Return whether an object of a script has ``__fastdata__``.

    One that ``__getattr__`` delegates or ``functools.wraps`` copied does not count, nor one that is
    inherited past an override of the call.
    """
    function = transform.__func__ if isinstance(transform, MethodType) else transform
    method = getattr_static(function, "__fastdata__", None)
    wrapped = getattr_static(function, "__wrapped__", None)
    if method is None or method is getattr_static(wrapped, "__fastdata__", None):
        return False
    kinds = (transform if isinstance(transform, type) else type(transform)).__mro__
    if "__fastdata__" in getattr(transform, "__dict__", {}):
        return True
    if override(transform):
        return False
    for names in map(vars, kinds):
        # A class may keep its pipeline under the name transform.
        own = _CALLED.intersection(names) or isroutine(names.get("transform"))
        if own or "__fastdata__" in names:
            return "__fastdata__" in names
    return True


def offered(transform: Any) -> Any:
    """Return the transform that a transform's ``__fastdata__`` returns; None if it has none.

    Raise UsageError if that is no transform of fastdata.
    """
    if not offers(transform):
        return None
    name = getattr(transform, "__qualname__", type(transform).__qualname__)
    if isinstance(transform, type):
        raise UsageError(f"{name} is a class, not a transform", f"Give an object: {name}(…).")
    if is_ours(transform.__fastdata__) or not callable(transform.__fastdata__):
        kind = type(transform.__fastdata__).__name__
        raise UsageError(
            f"{name}.__fastdata__ is a {kind}, not a function",
            "Make it a method or a function without arguments that returns a transform.",
        )
    instead = transform.__fastdata__()
    if not is_ours(instead):
        raise UsageError(
            f"{name}.__fastdata__() returned a {class_name(instead)}",
            "Return one of fastdata.transforms, such as fastdata.transforms.Compose([…]), which "
            "may hold others.",
        )
    return instead


def composed(transform: Any) -> tuple[Any, ...] | None:
    """Return the transforms of torchvision's Compose, or of a ``torch.nn.Sequential``."""
    if name_in(transform, "torchvision.transforms", "torchvision.transforms.v2") == "Compose":
        return tuple(transform.transforms)
    return tuple(transform) if name_in(transform, "torch.nn") == "Sequential" else None


def changed(holder: type[Any] | ModuleType) -> str:
    """Say in a clause which name of a class or module, or of a module it uses, was replaced.

    "" if none was.
    """
    homes: list[Any] = [holder]
    if isinstance(holder, type):
        kinds = [one for one in holder.__mro__ if is_code(one.__module__)]
        homes = [sys.modules.get(one.__module__) for one in kinds]
        for kind, home in zip(kinds, homes, strict=True):
            if _own(home).get(kind.__name__) is not kind:
                return f"{kind.__module__}.{kind.__qualname__} is not what its library defines"
    name = next(filter(None, (_once(home, _difference) for home in homes)), "")
    return f"{name} is not what its library defines" if name else ""


def _once(module: ModuleType, function: Callable[[ModuleType], Any]) -> Any:
    """Return a function's result for a module; computed again only after `fresh_look` forgets."""
    key = function, module
    if key not in _MEMORY.results:
        _MEMORY.results[key] = function(module)
    return _MEMORY.results[key]


def _difference(home: ModuleType) -> str:
    """Return the path of the first replaced name in a module, or those it uses; "" for none."""
    modules, path = [home], ""
    for module in modules:
        path, used = _once(module, _examined)
        if path:
            break
        modules += [one for one in used if one not in modules]
    return path


def _examined(module: ModuleType) -> tuple[str, list[ModuleType]]:
    """Return the path of a module's first replaced name, "" for none; and the modules it uses."""
    own, path = _copied(vars(module)), module.__name__
    holders = [(path, own)]
    names = set()
    for one in own.values():
        # Named tuples are made by eval.
        if isinstance(one, type) and one.__module__ == path and not issubclass(one, tuple):
            holders.append((f"{path}.{one.__qualname__}", _copied(vars(one))))
        name = getattr(one, "__name__" if isinstance(one, ModuleType) else "__module__", "")
        if isinstance(name, str) and is_code(name):
            names.add(name)
    used = [sys.modules[name] for name in sorted(names & sys.modules.keys())]
    return next((path for holder in holders for path in _replaced(*holder)), ""), used


def _copied(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of a dictionary; `fresh_look` compares the dictionary with it."""
    copy = {**table}
    _MEMORY.places += table.keys(), table.values()
    _MEMORY.values += *copy, *copy.values()
    return copy


def _replaced(path: str, own: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of those names of a class or module that are bound to no library's object."""
    for name in _ONLY.get(path, own):
        counts = name in own and name not in _IGNORED and not name.startswith(_ADDED)
        if counts and not _is_a_librarys(own[name]):
            yield f"{path}.{name}"


def _is_a_librarys(value: Any) -> bool:
    """Return whether a value, and all functions that it holds, are of `PACKAGES`."""
    if isinstance(value, type):  # libraries use classes of other packages
        return True
    thing = value if isinstance(value, (FunctionType, ModuleType)) else type(value)
    return _is_of_package(thing) and all(map(_is_a_librarys, _held(value)))


def _held(value: Any) -> Iterable[Any]:
    """Return the functions and other objects that decide what a value does."""
    if isinstance(value, dict):
        # Others may add entries to tables for classes of their own.
        items = _copied(value).items()
        return [one for key, one in items if not isinstance(key, type) or _is_of_package(key)]
    if isinstance(value, list):
        _MEMORY.places.append(value)
        _MEMORY.values += value
        return value
    if isinstance(value, tuple):
        return value
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return (value.func,)
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return (value.__func__,)
    if isinstance(value, FunctionType):
        return (value.__dict__.get("__wrapped__"),)
    return (value.__wrapped__,) if isinstance(value, _CACHED) else ()


def _is_of_package(thing: FunctionType | type[Any] | ModuleType) -> bool:
    """Return whether a function, class or module is of one of `PACKAGES`."""
    if isinstance(thing, FunctionType):
        name = str(thing.__globals__.get("__name__"))
        if vars(sys.modules.get(name, sys)) is not thing.__globals__:
            return False
    else:
        name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return name.partition(".")[0] in PACKAGES


def own_method(dataset: Any, base: type, *names: str) -> str:
    """Say which of these methods a dataset, or its library, has changed; "" for none."""
    kind = type(dataset)
    for name in names:
        replaced = getattr(kind, name, None) is not getattr(base, name, None)
        if replaced or name in vars(dataset):
            return f"{class_name(dataset)} has its own {name}"
    return changed(base) if is_code(base.__module__) else ""
