"""Comparison of a library's classes and functions with the library's own file.

fastdata replaces known transforms by its own code, so their code must be the known one. A snapshot
at import would miss earlier patches, and ``functools.wraps`` copies a function's ``__module__`` and
``__qualname__``. So the module's file decides. Its code runs a second time, in a namespace that no
other module sees, where imports of other known modules give such copies, too. That makes a *copy*
of every class, function and table. `_Comparison` walks the copy and the live module side by side:
bytecode, constants, defaults, closures, bases, attributes, tables, and every global name that the
code uses. So a method taken from another class of the same library differs, and so does a lambda
in a table.

This costs 10 to 100 ms for a library, once a process. Results are kept as facts ("this name is
bound to this object"); later calls only check that the facts hold, in microseconds.

Pillow, NumPy and torch are the ground: fastdata implements their operations itself, and patches
*within* them are not seen. Compared are Pillow's ``ImageOps``, ``ImageEnhance`` and
``ImageFilter``, and of torch `torch.nn.Module`, its containers, ``Subset`` and ``default_collate``;
of Pillow's images only whether methods were replaced (`pillow_changed`).
"""

from __future__ import annotations

import builtins
import enum
import functools
import importlib.util
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from PIL import Image

#: The modules that are copied, each with its submodules.
_COPIED = (
    *("PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageOps"),
    *("dinov2.data.augmentations", "dinov2.data.transforms"),
    *("lightly.transforms", "open_clip.transform"),
    *("timm.data.auto_augment", "timm.data.loader", "timm.data.mixup"),
    *("timm.data.naflex_transforms", "timm.data.random_erasing", "timm.data.transforms"),
    *("torch.nn.modules.container", "torch.nn.modules.linear", "torch.nn.modules.module"),
    *("torch.utils.data._utils.collate", "torch.utils.data.dataset"),
    *("torchvision.datasets.coco", "torchvision.datasets.folder", "torchvision.datasets.imagenet"),
    *("torchvision.datasets.cityscapes", "torchvision.datasets.kitti"),
    *("torchvision.datasets.oxford_iiit_pet", "torchvision.datasets.vision"),
    *("torchvision.datasets.voc", "torchvision.datasets.widerface", "torchvision.transforms"),
    "torchvision.tv_tensors._dataset_wrapper",
    *("transformers.image_processing_backends", "transformers.image_processing_base"),
    *("transformers.image_processing_utils", "transformers.image_transforms"),
    "transformers.models",
)

#: Attributes of classes that do not decide what their objects do to an image.
_NOT_COMPARED = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
        *("__annotations_cache__", "__dict__", "__doc__", "__firstlineno__", "__init_subclass__"),
        *("__module__", "__orig_bases__", "__parameters__", "__repr__", "__slotnames__"),
        *("__static_attributes__", "__str__", "__weakref__", "_abc_impl", "extra_repr"),
    }
)

#: The methods that calling an object runs, where its class has others. torch itself replaces
#: Module's __init__ and __setstate__ as soon as something is compiled.
_CALLED = {
    "torch.nn.modules.module.Module": frozenset(
        {
            *("__call__", "__getattr__", "__getattribute__"),
            *("_call_impl", "_slow_forward", "_wrapped_call_impl", "forward"),
        }
    )
}

#: Attributes that decide what code computes; its lines and file name do not.
_OF_CODE = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags"),
)

#: Methods of Pillow's images by which libraries transform them.
_METHODS = (
    *("convert", "copy", "crop", "filter", "getbands", "paste", "point", "putpalette", "quantize"),
    *("resize", "rotate", "split", "tobytes", "transform", "transpose"),
)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MISSING = object()
_LOCK = threading.RLock()


def is_copied(module: Any) -> bool:
    """Return whether a module of this name is one that is compared with its file."""
    return isinstance(module, str) and any(
        module == name or module.startswith(f"{name}.") for name in _COPIED
    )


def pillow_changed() -> str:
    """Say in a clause which method of Pillow's images was replaced; "" for none."""
    for name in _METHODS:
        found = vars(Image.Image).get(name)
        if (
            not isinstance(found, FunctionType)
            or found.__globals__ is not vars(Image)
            or found.__code__.co_name != name
        ):
            return f"PIL.Image.Image.{name} is not what Pillow defines"
    return ""


def overridden(thing: Any, kind: type[Any]) -> str:
    """Say in a clause why an object may behave otherwise than its library's class; "" if it cannot.

    Args:
        thing: The object.
        kind: The library's class, which the object's type is or derives from.
    """
    own: Mapping[str, Any] = getattr(thing, "__dict__", {})
    for name in own:
        found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        table = name.startswith("_") and isinstance(found, (dict, tuple))
        if table or callable(found) or isinstance(found, (staticmethod, classmethod, property)):
            return f"its {name} was replaced"
    torch_module = sys.modules.get("torch.nn.modules.module")
    if torch_module is not None and isinstance(thing, torch_module.Module):
        return hooked(thing) or changed(torch_module.Module) or changed(kind)
    return changed(kind)


#: Own attributes of a class that only has another constructor, in any version of Python.
_CONSTRUCTED = frozenset(
    {
        *("__annotate__", "__annotations__", "__doc__", "__firstlineno__", "__init__"),
        *("__module__", "__static_attributes__"),
    }
)


def kind_of(transform: Any) -> type[Any]:
    """Return a transform's type; if that only has another constructor, its base."""
    kind: type[Any] = type(transform)
    while len(kind.__bases__) == 1 and vars(kind).keys() <= _CONSTRUCTED:
        if type(kind) is not type(kind.__bases__[0]):
            break
        kind = kind.__bases__[0]
    return kind


def name_in(transform: Any, *modules: str) -> str:
    """Return the name under which one of the modules has exactly a transform's type.

    "" if none has, or if it was overridden (`override`).
    """
    kinds: tuple[type[Any], ...] = (type(transform), kind_of(transform))
    for kind in kinds:
        name: str = kind.__name__
        for module in modules:
            if getattr(sys.modules.get(module), name, None) is kind:
                return "" if overridden(transform, kind) else name
    return ""


def override(transform: Any) -> str:
    """Say in a clause what of a library's transform was overridden; "" if nothing was."""
    for kind in (type(transform), kind_of(transform)):
        if is_copied(kind.__module__):
            return overridden(transform, kind)
    return ""


def transform_class() -> Any:
    """Return the base of torchvision's v2 transforms; None where they are not in use."""
    return getattr(sys.modules.get("torchvision.transforms.v2"), "Transform", None)


def composed(transform: Any) -> tuple[Any, ...] | None:
    """Return the transforms of torchvision's Compose, or of a ``torch.nn.Sequential``."""
    modules = ("torchvision.transforms", "torchvision.transforms.v2")
    if name_in(transform, *modules) and kind_of(transform).__name__ == "Compose":
        return tuple(transform.transforms)
    return tuple(transform) if name_in(transform, "torch.nn") == "Sequential" else None


def hooked(module: Any) -> str:
    """Say in a clause which hooks run when a module of torch's is called; "" for none."""
    for name in (*_HOOKS, "_compiled_call_impl"):
        if vars(module).get(name):
            return f"it has {name.lstrip('_')}"
    torch_module = sys.modules["torch.nn.modules.module"]
    for name in _HOOKS:
        if getattr(torch_module, f"_global{name}", None):
            return f"torch.nn has global{name}"
    return ""


def changed(holder: type[Any] | ModuleType, *names: str) -> str:
    """Say in a clause what of a library is not as its file has it; "" if all of it is.

    Args:
        holder: A class, or a module.
        names: Of its attributes, and what these use; none for all of a class.
    """
    key = (holder, *names)
    memo: dict[Any, str] | None = getattr(_SETTLED, "memo", None)
    if memo is not None and key in memo:
        return memo[key]
    with _LOCK:
        facts = _VERIFIED.get(key)
        result = ""
        if facts is None or not facts.hold():
            comparison = _Comparison()
            result = comparison.root(holder, names)
            if not result:
                _VERIFIED[key] = comparison.facts
    if memo is not None:
        memo[key] = result
    return result


@contextmanager
def settled() -> Iterator[None]:
    """Within, this thread looks at each class once."""
    before = getattr(_SETTLED, "memo", None)
    _SETTLED.memo = {} if before is None else before
    try:
        yield
    finally:
        _SETTLED.memo = before


class _Facts:
    """Facts found by a comparison, to check quickly that they still hold."""

    def __init__(self) -> None:
        self.bound: list[tuple[Mapping[str, Any], str, Any]] = []
        self.functions: list[tuple[FunctionType, Any, Any, Any]] = []
        self.cells: list[tuple[Any, Any]] = []
        self.tables: list[tuple[Any, Any]] = []
        self.classes: list[tuple[type[Any], tuple[type[Any], ...], int]] = []
        self.unbound: list[tuple[Mapping[str, Any], frozenset[str]]] = []

    def hold(self) -> bool:
        for mapping, name, value in self.bound:
            if mapping.get(name, _MISSING) is not value:
                return False
        for function, code, defaults, kwdefaults in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ != kwdefaults:
                return False
        return (
            all(cell.cell_contents is value for cell, value in self.cells)
            and all(table == before for table, before in self.tables)
            and all(
                kind.__bases__ == bases and len(vars(kind)) == size
                for kind, bases, size in self.classes
            )
            and all(mapping.keys().isdisjoint(names) for mapping, names in self.unbound)
        )


_VERIFIED: dict[Any, _Facts] = {}
_SETTLED = threading.local()


class _Comparison:
    """Walks what a class or function is made of, and its copy, side by side.

    Each method returns the name of the first difference, or "".
    """

    def __init__(self) -> None:
        self.facts = _Facts()
        self._seen: set[tuple[int, int]] = set()
        self._code_names: dict[CodeType, frozenset[str]] = {}

    def root(self, holder: Any, names: Sequence[str]) -> str:
        """Compare an attribute of a module or class, as `changed` does."""
        module, path = getattr(holder, "__module__", None), getattr(holder, "__qualname__", "")
        if isinstance(holder, ModuleType):
            module, path = holder.__name__, ""
        where = f"{module}.{path}".rstrip(".")
        if not is_copied(module) or module not in sys.modules:
            return f"{where} is not its library's"
        try:
            copy: Any = functools.reduce(getattr, path.split(".") if path else (), _copied(module))
        except Exception as error:  # a library's module may do anything
            return f"{where} cannot be compared with its file: {error}"
        found = "" if names else self.differs(holder, copy, where, _NONE)
        for name in names:
            own = vars(holder), vars(copy)
            if not found and name in {**own[0], **own[1]}:
                found = f"{where}.{name}"
                if name in own[1]:
                    found = self._bound(*own, name, found, _NONE)
        return f"{found} is not what its library defines" if found else ""

    def differs(self, live: Any, copy: Any, where: str, used: frozenset[str]) -> str:
        """Compare two values; of modules, the attributes of the names that are used."""
        if live is copy:
            return ""
        if isinstance(copy, ModuleType):
            return self._modules(live, copy, where, used)
        pair = id(live), id(copy)
        if pair in self._seen:
            return ""
        self._seen.add(pair)
        if isinstance(copy, type):
            return self._classes(live, copy, where)
        if type(live) is not type(copy):
            # An object of a copied class; else another kind of thing.
            same = type(live).__qualname__ == type(copy).__qualname__
            if not same or not is_copied(type(copy).__module__):
                return where
        if isinstance(copy, FunctionType):
            return self._functions(live, copy, where)
        if isinstance(copy, (staticmethod, classmethod)):
            return self.differs(live.__func__, copy.__func__, where, used)
        if isinstance(copy, property):
            return self._each([(live.fget, copy.fget), (live.fset, copy.fset)], where, used)
        if isinstance(copy, functools.partial):
            pairs = [(live.func, copy.func), (live.args, copy.args)]
            return self._each([*pairs, (live.keywords, copy.keywords)], where, used)
        if isinstance(copy, enum.Enum):
            return "" if (live.name, live.value) == (copy.name, copy.value) else where
        if isinstance(copy, (dict, list, tuple)):
            return self._tables(live, copy, where, used)
        if isinstance(copy, (bool, int, float, complex, str, bytes, set, frozenset)):
            return "" if live == copy else where
        return ""  # loggers, type variables and the like

    def _each(self, pairs: Any, where: str, used: frozenset[str]) -> str:
        return next(filter(None, (self.differs(a, b, where, used) for a, b in pairs)), "")

    def _modules(self, live: Any, copy: ModuleType, where: str, used: frozenset[str]) -> str:
        if live is not sys.modules.get(copy.__name__) or copy.__name__ not in _COPIES:
            return where
        for name in sorted(used & vars(copy).keys()):
            if found := self._bound(vars(live), vars(copy), name, f"{copy.__name__}.{name}", used):
                return found
        return ""

    def _bound(
        self,
        live: Mapping[str, Any],
        copy: Mapping[str, Any],
        name: str,
        where: str,
        used: frozenset[str],
    ) -> str:
        """Compare what two namespaces bind to a name."""
        value = live.get(name, _MISSING)
        self.facts.bound.append((live, name, value))
        return self.differs(value, copy[name], where, used)

    def _tables(self, live: Any, copy: Any, where: str, used: frozenset[str]) -> str:
        if len(live) != len(copy):
            return where
        if not isinstance(copy, tuple):
            self.facts.tables.append((live, type(copy)(live)))
        if isinstance(copy, dict):
            for (name, a), (other, b) in zip(live.items(), copy.items(), strict=True):
                key = f"{where}[{name!r}]"
                if found := self.differs(name, other, key, used) or self.differs(a, b, key, used):
                    return found
            return ""
        return self._each(zip(live, copy, strict=True), where, used)

    def _classes(self, live: Any, copy: type[Any], where: str) -> str:
        if type(live) is not type(copy) or len(live.__bases__) != len(copy.__bases__):
            return where
        if isinstance(copy, enum.EnumMeta):
            values = [{one.name: one.value for one in kind} for kind in (live, copy)]
            return "" if values[0] == values[1] else where
        if issubclass(copy, tuple) and hasattr(copy, "_fields"):
            return "" if live._fields == copy._fields else where  # its methods are made by eval
        self.facts.classes.append((live, live.__bases__, len(vars(live))))
        for base, other in zip(live.__bases__, copy.__bases__, strict=True):
            if found := self.differs(
                base, other, f"{other.__module__}.{other.__qualname__}", _NONE
            ):
                return found
        names = (vars(live).keys() | vars(copy).keys()) - _NOT_COMPARED
        names &= _CALLED.get(f"{copy.__module__}.{copy.__qualname__}", names)
        for name in sorted(names):
            if name not in vars(copy):
                value = vars(live)[name]
                acts = callable(value) or hasattr(type(value), "__get__")
                if acts or any(name in vars(base) for base in live.__mro__[1:-1]):
                    return f"{where}.{name}"
                continue
            if found := self._bound(vars(live), vars(copy), name, f"{where}.{name}", _NONE):
                return found
        return ""

    def _functions(self, live: FunctionType, copy: FunctionType, where: str) -> str:
        name = copy.__globals__["__name__"]
        own = vars(sys.modules[name]) if name in sys.modules else None
        if live.__globals__ is not own or not _same_code(live.__code__, copy.__code__):
            return where
        kwdefaults = None if live.__kwdefaults__ is None else dict(live.__kwdefaults__)
        self.facts.functions.append((live, live.__code__, live.__defaults__, kwdefaults))
        pairs = [(live.__defaults__, copy.__defaults__), (live.__kwdefaults__, copy.__kwdefaults__)]
        if self._each(pairs, where, _NONE):
            return f"the defaults of {where}"
        used = _names(copy.__code__)
        for cell, other in zip(live.__closure__ or (), copy.__closure__ or (), strict=True):
            try:
                value, expected = cell.cell_contents, other.cell_contents
            except ValueError:  # not filled yet
                continue
            self.facts.cells.append((cell, value))
            if self.differs(value, expected, where, used):
                return where
        self.facts.unbound.append((own, _BUILTINS & used - copy.__globals__.keys()))
        if shadowed := next(iter(self.facts.unbound[-1][1] & own.keys()), ""):
            return f"{name}.{shadowed}"
        for global_name in sorted(used & copy.__globals__.keys() - _DISPATCH):
            if found := self._bound(
                own, copy.__globals__, global_name, f"{name}.{global_name}", used
            ):
                return found
        return self._kernels(live, copy, where)

    def _kernels(self, live: FunctionType, copy: FunctionType, where: str) -> str:
        """Compare what torchvision's v2 dispatches a function to, for images."""
        utilities = "torchvision.transforms.v2.functional._utils"
        if utilities not in _COPIES or not copy.__module__.startswith("torchvision.transforms.v2"):
            return ""
        expected = _COPIES[utilities]._KERNEL_REGISTRY.get(copy, {})
        found = sys.modules[utilities]._KERNEL_REGISTRY.get(live, {})
        for kind, kernel in expected.items():
            if kind.__name__ not in ("Image", "Tensor"):
                continue
            self.facts.bound.append((found, kind, found.get(kind, _MISSING)))
            name = f"the kernel of {where} for {kind.__name__}"
            if difference := self.differs(found.get(kind, _MISSING), kernel, name, _NONE):
                return difference
        return ""


_NONE: frozenset[str] = frozenset()
#: Tables of which only the entries for images are compared.
_DISPATCH = frozenset({"_KERNEL_REGISTRY"})
_BUILTINS = frozenset(vars(builtins))


def _same_code(live: CodeType, copy: CodeType) -> bool:
    # By bytecode: two executions of one file make functions that only their code relates. Code's
    # own == has been wrong about specialised instructions, and compares lines.
    return all(getattr(live, name) == getattr(copy, name) for name in _OF_CODE) and _same_constants(
        live.co_consts, copy.co_consts
    )


def _same_constants(live: Any, copy: Any) -> bool:
    if type(live) is not type(copy):
        return False
    if isinstance(copy, CodeType):
        return _same_code(live, copy)
    if isinstance(copy, tuple):
        return len(live) == len(copy) and all(map(_same_constants, live, copy))
    return repr(live) == repr(copy) if isinstance(copy, float) else bool(live == copy)


@functools.cache
def _names(code: CodeType) -> frozenset[str]:
    """Return the names that code and the functions in it use."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


# --- copies ------------------------------------------------------------------------------------

_COPIES: dict[str, ModuleType] = {}


class _Package(ModuleType):
    """A package that is not copied itself: copies of its modules, else what is imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules[self.__name__], name)


def _copied(name: str) -> ModuleType:
    """Return the copy of a module that is imported."""
    parent, _, own = name.rpartition(".")
    if name not in _COPIES and is_copied(parent):
        _copied(parent)  # which may import this one
    if name in _COPIES:
        return _COPIES[name]
    live = sys.modules[name]
    if not is_copied(name) or not vars(live).get("__package__"):  # which transformers' lack
        _COPIES[name] = _Package(name)
        return _COPIES[name]
    spec: Any = live.__spec__
    code = spec.loader.get_code(name)
    copy = ModuleType(name)
    same = ("__file__", "__loader__", "__package__", "__path__", "__spec__")
    vars(copy).update({key: vars(live)[key] for key in same if key in vars(live)})
    vars(copy)["__builtins__"] = {**vars(builtins), "__import__": _import}
    _COPIES[name] = copy
    try:
        exec(code, vars(copy))
    except BaseException:
        del _COPIES[name]
        raise
    if parent in _COPIES:
        setattr(_COPIES[parent], own, copy)
    return copy


def _import(
    name: str, own: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    """Do as ``__import__``, but give copies of what is copied."""
    absolute = name
    if level:
        absolute = importlib.util.resolve_name("." * level + name, own["__package__"])
    inner = [f"{absolute}.{one}" for one in fromlist or ()]
    children = [one for one in inner if is_copied(one) and one in sys.modules]
    if absolute not in sys.modules or not (is_copied(absolute) or children):
        return __import__(name, own, local, fromlist, level)
    if not fromlist:
        parts = absolute.split(".")
        for end in range(1, len(parts)):
            parent, child = (".".join(parts[:at]) for at in (end, end + 1))
            setattr(_copied(parent), parts[end], _copied(child))
        return _copied(parts[0])
    module = _copied(absolute)
    for child in children:
        setattr(module, child.rpartition(".")[2], _copied(child))
    return module


def own_function(module: str, name: str) -> Any:
    """Return what a module of torchvision's has under a name, while that is its own; else None."""
    found: Any = getattr(sys.modules.get(module), name, None)
    defined = str(getattr(found, "__module__", ""))
    if not defined.startswith(("torchvision.", "torch.")) or found.__name__ != name:
        return None
    code = isinstance(found, types.FunctionType)
    return found if not code or found.__globals__ is vars(sys.modules[defined]) else None
