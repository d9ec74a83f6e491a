"""Make the pages of docs that show committed results: figures are generated, never typed.

python -m fastdata.benchmarks.pages benchmarks docs/results > docs/benchmarks.md

A page's words are in ``templates``; each function here returns the values for one of them, and
draws the plots that it shows.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks import augment, bench, bench_figures, convert, pixels, plots
from fastdata.benchmarks.contenders import FASTDATA, PEERS

Values = dict[str, Any]

_TEMPLATES = Path(__file__).parent / "templates"
#: The fewest rounds whose median means something.
_ENOUGH = 3
_CAUTION = """
**Preliminary:** too few rounds for a spread; a difference of some tenths may be noise.
"""


def _fill(template: str, values: Values) -> str:
    return (_TEMPLATES / f"{template}.md").read_text("utf-8").format(**values)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _benchmarks(results: Path) -> Values:
    """Return the values of the page on loaders; bench-notes.md says what no figure can."""
    result = bench.load(results / "bench.json")
    for narrow, name in ((False, "loaders.svg"), (True, "loaders-narrow.svg")):
        (results / name).write_text(plots.loaders(result, plots.FULL_SIZE, narrow=narrow))
    options = result["options"]
    known = {contender.name: contender.note for contender in (*FASTDATA, *PEERS)}
    limitations = results / "bench-notes.md"
    runs = _runs(result)
    return _measured(result) | {
        "machine": _machine(result),
        "caution": _CAUTION if len({run["round"] for run in runs}) < _ENOUGH else "",
        "ratios": bench_figures.ratios(result),
        "most": max(run["threads"] for run in runs),
        "limits": _limits(result, results / "decode.json"),
        "table": bench_figures.figures(result),
        "failures": _listed(f"failed: {line}" for line in bench_figures.failures(result)),
        "losses": bench_figures.losses(result),
        "limitations": limitations.read_text() if limitations.exists() else "",
        "notes": _listed(
            f"{c['name']}: {known.get(c['name'], c['note'])}{_tolerance(c)}"
            for c in result["contenders"]
        ),
        "cache": "dropped first" if options["cold"] else "filled first",
        "images": options["images"] or "all",
        "encodings": _encodings(results),
    }


def _measured(result: dict[str, Any]) -> Values:
    """Return how the loader benchmark measured."""
    options = result["options"]
    versions = {
        f"{name} {version}"
        for contender in result["contenders"]
        for run in contender["runs"][:1]
        for name, version in run["versions"].items()
    }
    return {
        **options,
        "rounds": len({run["round"] for run in _runs(result)}),
        "versions": ", ".join(sorted(versions)),
        "arguments": _arguments(options),
    }


def _runs(result: dict[str, Any]) -> list[bench_figures.Run]:
    return [run for contender in result["contenders"] for run in contender["runs"]]


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _limits(result: dict[str, Any], decoding: Path) -> str:
    """Return the part on what limits fastdata; "" without the decoding benchmark's results."""
    table = bench_figures.limits(result, _read(decoding)) if decoding.exists() else None
    return "" if table is None else _fill("limits", {"table": table})


def _encodings(results: Path) -> str:
    """Return the part on encodings; "" without encodings.json."""
    if not (path := results / "encodings.json").exists():
        return ""
    found = _read(path)
    values = {"table": _benchmark("encodings").figures(found), "machine": _machine(found)}
    return _fill("encodings", found | values)


def _loading(results: Path) -> Values:
    result = _read(results / "loading.json")
    speed, ratios = _benchmark("loading").figures(result)
    rounds = len(result["images_per_second"]["loader"])
    return {"machine": _machine(result), "speed": speed, "ratios": ratios, "rounds": rounds}


def _kinds(results: Path) -> Values:
    result = _read(results / "kinds.json")
    first = next(iter(result["kinds"].values()))
    return {
        **result,
        "machine": _machine(result),
        "table": _benchmark("kinds").figures(result),
        "rounds": len(first["images_per_second"]["torch"]),
    }


def _pairs(results: Path) -> Values:
    result = _read(results / "pairs.json")
    return {
        **result,
        "machine": _machine(result),
        "table": _benchmark("pairs").figures(result),
        "rounds": len(result["turns"]["fastdata"]),
    }


def _hugging_face(results: Path) -> Values:
    result = _read(results / "hugging-face-speed.json")
    return {
        **result,
        "machine": _machine(result),
        "table": _benchmark("hugging_face").figures(result),
        "rounds": len(result["turns"]["fastdata"]),
        "version": result["machine"]["packages"]["datasets"],
    }


def _in_place(results: Path) -> Values:
    result = _read(results / "in-place-speed.json")
    indexed = _read(results / "indexing.json")
    wall, processor = _benchmark("in_place").figures(result)
    return {
        **result,
        "machine": _machine(result),
        "wall": wall,
        "processor": processor,
        "rounds": len(result["turns"]["webdataset"]),
        "indexing": _benchmark("indexing").figures(indexed),
        "indexing_load": indexed["load"],
        "workers": indexed["workers"],
        "opened": len(indexed["open"]),
    }


def _targets(results: Path) -> Values:
    result = _read(results / "targets.json")
    table, *stages = _benchmark("targets").figures(result)
    turns = next(iter(result["pipelines"].values()))["turns"]
    return {
        **result,
        "machine": _machine(result),
        "table": table,
        "rounds": len(turns["fastdata"]),
        "stages": "\n".join(f"### {one.title}\n\n{one}" for one in stages),
    }


def _fields(results: Path) -> Values:
    result = _read(results / "fields.json")
    opening, reading, collating = _benchmark("fields").figures(result)
    return {
        **result,
        "machine": _machine(result),
        "opening": opening,
        "reading": reading,
        "collating": collating,
        "unread_rounds": len(result["unread"]["turns"]["none"]),
        "step": result["collating"]["step"] * 1e3,
    }


def _scale(results: Path) -> Values:
    result = _read(results / "scale.json")
    sizes, speed = _benchmark("scale").figures(result)
    first = next(iter(result["cases"].values()))
    return {
        **result,
        "machine": _machine(result),
        "sizes": sizes,
        "speed": speed,
        "rounds": len(first["random"]),
    }


def _training(results: Path) -> Values:
    result = _read(results / "training.json")
    settings, date = result["settings"], result["date"][:10]
    commit = f" at commit {result['commit']}" if result["commit"] else ""
    known = _benchmark("training").WORKLOADS
    lacking = [known[name].title for name in known if name not in result["workloads"]]
    return {
        "lacking": f"Not measured yet: {'; '.join(lacking)}.\n\n" if lacking else "",
        "machine": _machine(result, result["machine"]["gpu"]),
        "when": f"Measured on {date}{commit}.",
        "workloads": "\n".join(map(_workload, result["workloads"].values())),
        "rounds": settings["rounds"],
        "seconds": settings["seconds"],
        "batch": settings["batch"],
        "images": settings["samples"],
        "about": result["about"],
    }


def _workload(found: dict[str, Any]) -> str:
    """Return the part on one network: its tables, its trace, and who is missing."""
    training = _benchmark("training")
    parts = [f"## {table.title}\n\n{table}" for table in training.figures(found)]
    if trace := found["traces"].get("fastdata"):
        most = max(map(int, found["turns"]["fastdata"]))
        parts.append(_fill("training-trace", {"most": most, **trace}))
    parts += [f"Not measured: {name} ({why}).\n" for name, why in found["missing"].items()]
    # An older benchmark did not know them all.
    others = [one for one in training.LIBRARIES if one not in {*found["missing"], *found["turns"]}]
    parts += [f"Not measured yet: {', '.join(others)}.\n"] if others else []
    return "\n".join(parts)


def _augmentations(results: Path) -> Values:
    result = _read(results / "augment.json")
    return {
        "machine": _machine(result),
        "table": augment.figures(result),
        "rounds": len(next(iter(result["microseconds"]["invert"].values()))),
        "recipes": _recipes(results / "recipes.json"),
    }


def _recipes(path: Path) -> str:
    """Return the part on what ``fastdata bench --recipe`` measured; "" without its results."""
    if not path.exists():
        return ""
    result = bench.load(path)
    contenders = result["contenders"]
    loads = [run["load"] for run in _runs(result)]
    values = _measured(result) | {
        "machine": _machine(result),
        "tables": "".join(f"### {t.title}\n\n{t}\n" for t in bench_figures.tables(result)),
        "notes": _listed(f"{c['name']}: {c['note']}" for c in contenders if c["note"])
        + _listed(f"failed: {line}" for line in bench_figures.failures(result)),
        "images": result["options"]["images"] or max(c.get("samples", 0) for c in contenders),
        "low": min(loads),
        "high": max(loads),
        "cpus": result["machine"]["cpus"],
        "factor": pixels.FACTOR,
    }
    return _fill("recipes", values)


def _packing(results: Path) -> Values:
    result = _read(results / "convert.json")
    rounds = len(result["seconds"]["tar"])
    return {"machine": _machine(result), "convert": convert.figures(result), "rounds": rounds}


def _benchmark(name: str) -> Any:
    """Import a benchmark that needs torch; other pages do without."""
    return importlib.import_module(f"fastdata.benchmarks.{name}")


def _machine(result: dict[str, Any], *more: str) -> str:
    about = result["machine"]
    packages = about["packages"] | ({"torch": about["torch"]} if "torch" in about else {})
    parts = (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gb']} GB",
        about["system"],
        f"Python {about['python']}",
        ", ".join(f"{name} {version}" for name, version in packages.items()),
        *([about["simd"]] if "simd" in about else []),
        *more,
    )
    return "; ".join(parts) + "."


def _arguments(options: dict[str, Any]) -> str:
    """Return the arguments of ``fastdata bench`` that measure so again."""
    words = [f"--images {options['images']}"] if options["images"] else []
    words.append("--threads " + ",".join(map(str, options["threads"])))
    words += [f"--{name} {options[name]:g}" for name in ("seconds", "warmup", "rounds")]
    words += [f"--recipe {name}" for name in options.get("recipes", ())]
    if options["cold"]:
        words.append("--cold")
    return " ".join(words)


def _tolerance(contender: dict[str, Any]) -> str:
    if not contender["why"]:
        return ""
    mean = contender.get("mean_tolerance")
    most = f"within {contender['tolerance']:g} levels"
    most += f", {mean:g} on average over images" if mean else ""
    return f"; pixels {most}, because {contender['why']}"


#: The values of each page, from the folder of results.
PAGES: dict[str, Callable[[Path], Values]] = {
    "benchmarks": _benchmarks,
    "packing": _packing,
    "kinds": _kinds,
    "loading": _loading,
    "pairs": _pairs,
    "hugging-face-speed": _hugging_face,
    "in-place-speed": _in_place,
    "detection-speed": _targets,
    "fields": _fields,
    "augmentations": _augmentations,
    "training": _training,
    "scale": _scale,
}


@click.command()
@click.argument("page", type=click.Choice(list(PAGES)))
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(page: str, results: Path) -> None:
    """Print the PAGE that shows the folder RESULTS; draw its plots there."""
    click.echo(_fill(page, PAGES[page](results)), nl=False)


if __name__ == "__main__":
    main()
