"""Limits of size and structure of the Python code, for make lint: prints what exceeds them.

import-linter checks the directions of imports and their circles.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

#: Lines of a module, and of a function without its docstring.
MODULE, FUNCTION = 600, 80
#: Methods and properties of a class whose names do not begin with ``_``.
METHODS = 20
PARAMETERS = 12
#: Modules in a chain of imports. Imports inside functions and of types alone are left out.
CHAIN = 11
#: Names that other libraries chose, torch's constructor above all.
EXEMPT = {"fastdata.loading.loader.DataLoader.__init__"}

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules but tests, by the names that they have installed."""
    trees = {}
    for folder in ("fastdata", "converters", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "fastdata" else ("fastdata", *parts))
            trees[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return trees


def definitions(body: Sequence[ast.stmt], place: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield classes and functions, at any depth, by their dotted names."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{place}.{node.name}"
            yield name, node
            yield from definitions(node.body, name)


def excesses(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yield a line for each limit that is exceeded."""
    classes = defaultdict(list)
    for module, tree in trees.items():
        lines = max((node.end_lineno or 0 for node in tree.body), default=0)
        if lines > MODULE:
            yield f"{module} has {lines} lines"
        for name, node in definitions(tree.body, module):
            if isinstance(node, ast.ClassDef):
                public = [one for one in methods(node) if not one.startswith("_")]
                if len(public) > METHODS:
                    yield f"{name} has {len(public)} public methods"
                if not node.name.startswith("_"):
                    classes[node.name].append(module)
            elif isinstance(node, ast.FunctionDef) and name not in EXEMPT:
                yield from of_function(name, node)
    for name, places in classes.items():
        if len(places) > 1:
            yield f"class {name} is defined in {', '.join(places)}"


def methods(node: ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


def of_function(name: str, node: ast.FunctionDef) -> Iterator[str]:
    lines = (node.end_lineno or 0) - node.lineno + 1
    lines -= len((ast.get_docstring(node, clean=False) or "").splitlines())
    if lines > FUNCTION:
        yield f"{name} has {lines} lines"
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    count = sum(one.arg not in ("self", "cls") for one in arguments)
    if count > PARAMETERS:
        yield f"{name} has {count} parameters"


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules that a module imports when it is imported itself."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{one.name}" for one in node.names}
            names |= inner & known or {node.module}
    return names & known


def longest_chain(trees: dict[str, ast.Module]) -> tuple[str, ...]:
    graph = {name: imports(tree, set(trees)) - {name, "fastdata"} for name, tree in trees.items()}

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max(map(chain, graph[name]), key=len, default=()))

    return max(map(chain, graph), key=len)


def undocumented(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yield public methods of public classes without a docstring that override none of ours."""
    every = (node for tree in trees.values() for node in tree.body)
    classes = {node.name: node for node in every if isinstance(node, ast.ClassDef)}

    def inherited(node: ast.ClassDef) -> set[str]:
        names = (ast.unparse(base).partition("[")[0] for base in node.bases)
        bases = [classes[name] for name in names if name in classes]
        return set[str]().union(*(methods(base) | inherited(base) for base in bases))

    for name, node in classes.items():
        documented = inherited(node)
        for one in node.body if not name.startswith("_") else ():
            if isinstance(one, ast.FunctionDef) and one.name not in documented:
                documented.add(one.name)  # a setter comes after its property
                if not one.name.startswith("_") and ast.get_docstring(one) is None:
                    yield f"{name}.{one.name} has no docstring"


def main() -> None:
    trees = modules()
    lines = [*excesses(trees), *undocumented(trees)]
    chain = longest_chain(trees)
    if len(chain) > CHAIN:
        lines.append(f"a chain of {len(chain)} imports: {' > '.join(chain)}")
    print("\n".join(lines))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
