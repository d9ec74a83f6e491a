"""The command line: every example in the help and the README runs, and errors are told well."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import datasets
import lmdb
import pytest
from annotated import write_coco, write_masked, write_voc, write_yolo
from click.testing import CliRunner
from fastdata.benchmarks.figures import Figures
from object_stores import make_bucket
from PIL import Image
from prefork import Prefork
from sources import jpeg, tar_bytes
from tiers import slow

import fastdata
from fastdata import ImageDataset
from fastdata.cli.commands import cli

_REPOSITORY = Path(__file__).resolve().parent.parent
_DOCS = _REPOSITORY / "docs"
#: Pages whose commands after "$ fastdata" are run; tests/test_site.py sees that no other has any.
PAGES = [
    _REPOSITORY / "README.md",
    *(_DOCS / f"{name}.md" for name in ("cli", "converting", "dataset", "doctor")),
    _DOCS / "get-started.md",
]
#: Pages whose Python is run, those of a list in one process.
_FIRST = [_DOCS / f"{name}.md" for name in ("index", "get-started", "three-names")]
_GUIDES = [*_FIRST, *sorted((_DOCS / "guides").glob("*.md"))]
_GROUPS = [
    [_REPOSITORY / "README.md"]
    + [_DOCS / f"{name}.md" for name in ("converting", "dataset", "doctor", "remote")],
    [_DOCS / "loader.md", _DOCS / "mixtures.md", _DOCS / "plan.md"],
    [_DOCS / "device.md"],
    _GUIDES + [_DOCS / "formats" / f"{name}.md" for name in ("fields", "lmdb")],
]
PYTHON_PAGES = [page for group in _GROUPS for page in group]


#: How a process is told to be `python -m fastdata`.
_MAIN = "import runpy; runpy.run_module('fastdata', run_name='__main__', alter_sys=True)"
_processes: list[Prefork] = []


@pytest.fixture(scope="module")
def _prefork() -> Iterator[None]:
    commands = ", ".join(f"fastdata.cli.{name}" for name in ("convert", "doctor", "info", "verify"))
    with Prefork(f"import gcsfs, torch, fastdata.loading, {commands}") as running:
        _processes.append(running)
        yield
        _processes.clear()


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return _processes[0].run(_MAIN, *arguments, cwd=cwd)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    command: Any = cli
    for name in path:
        command = command.get_command(click.Context(command), name)
    return click.Context(command, info_name="fastdata").get_help()


def examples(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"^\s*\$ fastdata (.*)$", text, re.MULTILINE)]


def tidy(words: list[str], folder: Path) -> None:
    """Removes what an example wrote, so that the next may write it with other options."""
    if words[0] == "convert":
        # What an example names as its own output, the next line may read.
        kept = {"imagenet", "imagenet-train-lmdb", "celeba", "ade", *_ANNOTATED, *_ARCHIVES}
        kept |= {*_PACKED, "shards", "tars-index", *words}
        for path in folder.iterdir():
            if path.is_dir() and path.name not in kept:
                subprocess.run(["rm", "-r", str(path)], check=True)


@pytest.fixture(scope="module")
def workplace(
    _prefork: None, small: Path, tmp_path_factory: pytest.TempPathFactory, gcs_endpoint: str
) -> Iterator[Path]:
    """A folder of all that the examples name; gs://bucket is one of a server on loopback."""
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copytree(small / "imagenet", folder / "imagenet")
    make_bucket(gcs_endpoint, "bucket")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
        environment.setenv("FSSPEC_GS_TOKEN", "anon")
        environment.setenv("FASTDATA_CACHE_DIR", str(folder / "cache"))
        environment.setenv("HF_HOME", str(folder / "hub"))
        environment.setenv("HF_HUB_OFFLINE", "1")
        fill(folder)
        yield folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as environment:
        environment.chdir(folder)
        for words in (
            "sample --images 20 --val-images 8 --classes 4 --workers 1",
            "convert imagenet --split train --workers 1",
        ):
            done = CliRunner().invoke(cli, words.split())
            assert done.exit_code == 0, done.output
    return folder


#: Datasets with fields in the workplace, and what packs them.
_PACKED = {
    "pairs": "table --root captions.csv",
    "faces": "table --root celeba/list.csv --images celeba/img",
    "boxes": "coco --root coco --split val2017 --to shards",
    "scenes": "masks --root ade20k --images images/training --masks annotations/training",
}


def fill(folder: Path) -> None:
    make_tables(folder)
    make_annotated(folder)
    make_archives(folder)
    url = "gs://bucket/imagenet-train-shards"
    packed = {url: "imagenet --split train --to shards", **_PACKED}
    packed["imagenet-train-lmdb"] = "imagenet --split train"
    for out, options in packed.items():
        done = run("convert", *options.split(), "--out", out, cwd=folder)
        assert done.returncode == 0, done.stderr
    (folder / "shards").mkdir()
    pairs = [(f"{n}.jpg", jpeg(n)) for n in range(4)], [(f"{n}.txt", b"text") for n in range(4)]
    members = [member for pair in zip(*pairs, strict=True) for member in pair]
    (folder / "shards/000.tar").write_bytes(tar_bytes(members))
    done = run("index", "shards/", "--out", "tars-index", cwd=folder)
    assert done.returncode == 0, done.stderr


def make_tables(folder: Path) -> None:
    images = sorted((folder / "imagenet").rglob("*.JPEG"))[:8]
    for name in ("celeba/img", "ade"):
        (folder / name).mkdir(parents=True)
    captions, attributes, masks = ["path,caption,tokens"], ["file_name,smiling,age"], []
    for number, path in enumerate(images):
        captions.append(f"{path.relative_to(folder)},photograph {number},{number + 3}")
        attributes.append(f"{number}.jpg,{number % 2},{20 + number}")
        shutil.copy(path, folder / "celeba" / "img" / f"{number}.jpg")
        with Image.open(path) as image:
            Image.new("L", image.size, number).save(folder / "ade" / f"{number}.png")
        row = {"image": f"celeba/img/{number}.jpg", "mask": f"ade/{number}.png"}
        masks.append(json.dumps(row | {"boxes": [[0, 0, 8, number]]}))
    for name, lines in {
        "captions.csv": captions, "celeba/list.csv": attributes, "ade.jsonl": masks,
    }.items():  # fmt: skip
        (folder / name).write_text("\n".join(lines) + "\n")


#: Folders in the workplace of files that other libraries write.
_ARCHIVES = ("lsun", "train.lmdb", "food101-saved")


def make_archives(folder: Path) -> None:
    images = {f"class/{n}": jpeg(n) for n in range(4)}
    (folder / "lsun").mkdir()
    for name in ("lsun/church_outdoor_val_lmdb", "train.lmdb"):
        with lmdb.open(str(folder / name), map_size=1 << 24) as db, db.begin(write=True) as writing:
            for key, image in images.items():
                writing.put(key.encode(), image)
    rows = [{"image": {"bytes": image, "path": None}, "label": 0} for image in images.values()]
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    saved.save_to_disk(folder / "food101-saved")


#: Folders of annotated images in the workplace.
_ANNOTATED = ("coco", "mine", "VOCdevkit", "coco8", "ade20k")


def make_annotated(folder: Path) -> None:
    write_coco(folder / "coco")
    write_coco(folder / "mine", "images")
    (folder / "mine/annotations/instances_images.json").rename(folder / "mine/labels.json")
    write_voc(folder / "VOCdevkit/VOC2012")
    write_masked(folder / "ade20k")
    yaml = write_yolo(folder / "coco8") / "data.yaml"
    yaml.write_text(yaml.read_text("utf-8").replace("images/val", "images/train"), "utf-8")
    shutil.copy(yaml, folder / "coco8.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_shows_examples_that_run(
    path: tuple[str, ...], workplace: Path, tmp_path: Path
) -> None:
    found = examples(help_of(path))
    assert found, f"fastdata {' '.join(path)} --help shows no example"
    place = workplace if path else tmp_path  # the first help page works from an empty folder
    for words in found:
        done = run(*words, cwd=place)
        assert done.returncode == 0, f"fastdata {shlex.join(words)}\n{done.stderr}"
        tidy(words, place)


def test_help_is_whole_and_json_one_flag() -> None:
    for path in commands(cli):
        about = re.split(r"^ *(?:Examples?|Options|Commands):$", help_of(path), flags=re.MULTILINE)
        lines = [line for line in about[0].splitlines()[1:] if line.strip()]
        assert {len(line) - len(line.lstrip()) for line in lines} == {2}, about
        command: Any = cli
        for name in path:
            command = command.get_command(click.Context(command), name)
        if isinstance(command, click.Group):
            done = CliRunner().invoke(cli, [*path, "--help"], env={"COLUMNS": "80"})
            assert "..." not in done.output.partition("Commands:")[2]
        else:
            (option,) = (one for one in command.params if "--json" in one.opts)
            assert isinstance(option, click.Option) and option.is_flag, path


@pytest.mark.slow
def test_the_pages_show_every_command_and_its_examples_run(workplace: Path) -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in cli.list_commands(click.Context(cli)):
        assert f"fastdata {name}" in text, f"README and docs say nothing of fastdata {name}"
    # What several pages show, or help as well, is run once.
    ran = [help_of(path) for path in commands(cli)]
    helped = [words for page in ran for words in examples(page)]
    for words in map(list, dict.fromkeys(map(tuple, examples(text)))):
        if words in helped or words[0] == "sample":
            continue
        done = run(*words, cwd=workplace)
        assert done.returncode == 0, f"fastdata {shlex.join(words)}\n{done.stderr}"
        tidy(words, workplace)


#: Runs scripts one after the other; torchvision is one that beside this torch can be imported.
_SCRIPTS = f"""
import runpy, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from torchvision_stub import import_torchvision
import_torchvision()
for script in sys.argv[1:]:
    print(script, file=sys.stderr)
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in ("accelerate", "datasets", "lightning", "transformers"):
            raise  # not every environment has these
"""


@pytest.mark.slow
@pytest.mark.parametrize("pages", _GROUPS, ids=lambda pages: pages[0].stem)
def test_the_python_of_the_pages_runs(pages: list[Path], workplace: Path) -> None:
    scripts = []
    for page in pages:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        for number, block in enumerate(blocks):
            script = f"{page.parent.name}-{page.stem}-{number}.py"
            (workplace / script).write_text(block)
            scripts.append(script)
    done = _processes[0].run(_SCRIPTS, *scripts, cwd=workplace)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("train/n01440764/1.JPEG", "imagenet"),
        ("ILSVRC2012_img_val.tar", "imagenet"),
        ("00000.tar", "webdataset"),
        ("part-0.parquet", "parquet"),
        ("_dataset.json", "dataset"),
        ("roses/1.jpg", "imagefolder"),
    ],
)
def test_a_place_where_a_source_is_wanted(place: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "my images" / place
    file.parent.mkdir(parents=True)
    file.touch()
    done = CliRunner().invoke(cli, ["convert", str(tmp_path / "my images"), "--to", "shards"])
    assert done.exit_code == 2
    assert f"fastdata convert {kind} --root '{tmp_path}/my images' --to shards" in done.stderr


def test_a_root_one_level_too_high_is_told(small: Path, tmp_path: Path) -> None:
    given = ["--workers", "1", "--out", str(tmp_path / "out")]
    root = small / "imagenet"
    done = CliRunner().invoke(cli, ["convert", "imagefolder", "--root", str(root), *given])
    assert done.exit_code == 0, done.output
    assert "its classes are train, val" in done.stderr
    assert f"--root {root}/train" in done.stderr
    given[-1] += "-right"
    done = CliRunner().invoke(cli, ["convert", "imagefolder", "--root", f"{root}/val", *given])
    assert done.exit_code == 0, done.output
    assert "warning" not in done.stderr
    # How to go on.
    assert f"fastdata.ImageDataset({given[-1]!r})" in done.stdout
    assert len(ImageDataset(given[-1])) == 8


def test_a_seed_is_of_the_splits_that_are_shuffled(small: Path, tmp_path: Path) -> None:
    given = ["convert", "imagenet", "--root", str(small / "imagenet"), "--workers", "1"]
    given += ["--seed", "7", "--out", str(tmp_path / "{split}")]
    done = CliRunner().invoke(cli, [*given, "--to", "shards"])
    assert done.exit_code == 0, done.output
    orders = [ImageDataset(tmp_path / split).manifest for split in ("train", "val")]
    assert [(one.order, one.seed) for one in orders] == [("shuffled", 7), ("source", None)]
    for container in (["--to", "lmdb"], ["--to", "shards", "--no-shuffle"]):
        done = CliRunner().invoke(cli, [*given, *container, "--force"])
        assert done.exit_code == 2
        assert "--seed 7 has no effect" in done.stderr


def test_every_command_that_prints_has_json(tmp_path: Path) -> None:
    def printed(*arguments: str) -> Any:
        done = CliRunner().invoke(cli, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    place, out = tmp_path / "made", str(tmp_path / "out")
    made = printed(
        "sample", "--out", str(place), "--images", "3", "--val-images", "3", "--classes", "3"
    )
    assert (made["out"], made["images"], made["classes"]) == (str(place), 3, 3)
    convert = ("convert", "imagefolder", "--root", f"{place}/train", "--out", out)
    packed = printed(*convert)
    assert (packed["path"], packed["samples"], packed["classes"]) == (out, 3, 3)
    assert printed(*convert)["resumed"] == 3
    assert printed("verify", out)["problems"] == []
    assert printed("seek-points", out)["samples"] == 3
    about = printed("info", out)
    assert (about["samples"], about["container"], about["staged"]) == (3, "lmdb", None)
    copies = Path(os.environ["FASTDATA_STAGE_ROOT"])
    copies.mkdir()
    staged = printed("stage", out)
    assert staged["copied_bytes"] > 0
    assert printed("info", out)["staged"].startswith(str(copies))
    assert printed("stage", out, "--unstage")["paths"] == [staged["path"]]
    assert printed("info", out)["staged"] is None
    data = Path(out) / "data.mdb"
    data.write_bytes(data.read_bytes()[:-4096])
    done = CliRunner().invoke(cli, ["verify", out, "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["problems"][0]["where"]


def test_figures_are_whole_however_narrow_the_terminal_is(small: Path) -> None:
    narrow = {"COLUMNS": "20"}
    done = CliRunner().invoke(cli, ["info", str(small / "imagenet-train-lmdb")], env=narrow)
    assert "20 of 4 classes" in done.stdout
    figures = Figures("title", ["name", "images/s"], [["a" * 30, "1,234,567"]])
    with CliRunner().isolation(env=narrow) as (out, *_):
        figures.show()
        assert out.getvalue().decode().splitlines()[2] == f"{'a' * 30}  1,234,567"


def test_shell_completion(small: Path) -> None:
    def complete(words: str) -> str:
        environment = {
            **os.environ,
            "_FASTDATA_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        command = [sys.executable, "-m", "fastdata"]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    assert "plain,verify" in complete("fastdata ver").splitlines()
    assert complete("fastdata verify ima").splitlines() == ["file,ima"]


@pytest.mark.parametrize("words", ["--help", slow("info imagenet-train-lmdb")])
def test_a_full_disk_behind_standard_output(words: str, small: Path) -> None:
    command = [sys.executable, "-m", "fastdata", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=small)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_versions_agree() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    version = importlib.metadata.version("fastdata-torch")
    assert done.stdout.split() == ["fastdata,", "version", version]
    assert fastdata.__version__ == version
    assert f"\nversion: {version}\n" in (_REPOSITORY / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["verify", "nowhere"], 1, ["nowhere", "no such folder", "fastdata convert"]),
        (["info", "imagenet"], 1, ["imagenet", "_dataset.json is missing", "convert"]),
        (["stage", "nowhere"], 1, ["nowhere", "no such folder"]),
        (["convert", "imagenet", "--to", "lmdb", "--shard-size", "1GB"], 2, ["--shard-size"]),
        (["verify", "imagenet-train-lmdb", "--workers", "9" * 20], 2, ["--workers 9", "4,096"]),
        (["seek-points", "imagenet-train-lmdb", "--stride", "9" * 20], 2, ["--stride 9", "65,535"]),
        (["convert", "imagefolder", "--root", ""], 2, ["--root is empty"]),
        (["convert", "imagenet", "--root", "imagenet/train"], 1, ["imagenet/train", "imagefolder"]),
        (["convert", "imagenet", "--out", "one"], 2, ["train and val", "--split", "{split}"]),
        (["convert", "imagenet", "--shard-size", "many"], 2, ["'many' is not a size", "256MiB"]),
        (
            ["convert", "imagenet/train", "--to", "shards"],
            2,
            [
                "'imagenet/train' is a folder; say what it contains",
                "fastdata convert imagefolder --root imagenet/train --to shards",
            ],
        ),
        (["convert", "imagenets"], 2, ["imagenets", "fastdata convert imagenet"]),
        (["convert", "imagenet", "--colour"], 2, ["No such option"]),
        (["convrt"], 2, ["No such command", "Did you mean", "convert"]),
        (["sample", "--out", "gs://bucket/s"], 2, ["--out gs://bucket/s is a URL", "a folder"]),
        (["sample", "--out", "/proc/s"], 1, ["/proc/s: ", "permissions"]),
    ],
)
def test_errors_say_what_where_and_how_to_mend(
    arguments: list[str], code: int, says: list[str], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small)
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert isinstance(done.exception, SystemExit)
    assert all(words in done.stderr for words in says), done.stderr
