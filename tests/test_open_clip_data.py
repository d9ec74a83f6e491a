"""open_clip's training on a packed dataset of images and captions (make test-recipes)."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastdata.converters.packing import pack
from fastdata.converters.webdataset import WebDataset
from jpegs import encode, picture
from recipe_packages import need
from torchvision_stub import import_torchvision

need("open_clip", "open_clip_train", "webdataset", "pandas")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the webdataset package
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]

PAIRS, BATCH = 46, 8
#: Captions as they are on the Web, and none.
CAPTIONS: list[str | None] = [
    *(f"Picture {number}: a {number % 7} &amp; the “{number * 37}” façade" for number in range(39)),
    "",
    "a word " * 100,
    "日本の写真 🗻",
    *(None,) * 4,
]
CAPTIONED = PAIRS - 4


def _tar(path: Path, numbers: Iterable[int]) -> None:
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            pixels = picture(60 + number * 7 % 30, 50 + number * 5 % 40, number, 25)
            key = f"{number:09}"
            about = {"url": f"http://a/{number}", "key": key, "status": "success", "width": 60}
            members = {"jpg": encode(pixels), "json": json.dumps(about).encode()}
            caption = CAPTIONS[number]
            if caption is not None:
                members["txt"] = caption.encode()
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


class _Setting(SimpleNamespace):
    root: Path
    theirs: Callable[..., Any]
    ours: Callable[..., Any]

    def args(self, **options: Any) -> Any:
        defaults = {
            "train_data": str(self.root / "pairs"),
            "val_data": str(self.root / "pairs"),
            "train_num_samples": None,
            "val_num_samples": None,
            "train_data_upsampling_factors": None,
            "batch_size": BATCH,
            "workers": 2,
            "seed": 3,
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
        }
        return SimpleNamespace(**defaults | options)

    def loader(self, epoch: int = 0, is_train: bool = True, **options: Any) -> Any:
        transform = self.transform
        return self.ours(
            self.args(**options), transform, is_train, epoch=epoch, tokenizer=self.tokenizer
        )

    def numbers(self, batches: Iterable[Any]) -> list[int]:
        known = {tuple(self.tokenizer(c)[0].tolist()): n for n, c in enumerate(CAPTIONS) if c}
        known[tuple(self.tokenizer("")[0].tolist())] = CAPTIONS.index("")
        return [known[tuple(row)] for _, tokens in batches for row in tokens.tolist()]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> _Setting:
    import_torchvision()
    import open_clip_train.data
    from open_clip.tokenizer import SimpleTokenizer
    from open_clip.transform import image_transform

    from examples.open_clip_data import get_fastdata_dataset

    root = tmp_path_factory.mktemp("pairs")
    (root / "tars").mkdir()
    for shard in range(2):
        _tar(root / "tars" / f"{shard:05}.tar", range(shard, PAIRS, 2))
    pack(WebDataset(root / "tars"), root / "pairs", container="shards", workers=1)
    return _Setting(
        root=root,
        ours=get_fastdata_dataset,
        theirs=open_clip_train.data.get_wds_dataset,
        transform=image_transform(32, is_train=False),
        tokenizer=SimpleTokenizer(),
    )


def test_an_epoch_has_the_pairs_that_open_clip_has(setting: _Setting) -> None:
    tars = str(setting.root / "tars" / "{00000..00001}.tar")
    args = setting.args(val_data=tars, workers=0)
    their = setting.theirs(args, setting.transform, False, tokenizer=setting.tokenizer)
    want: dict[int, torch.Tensor] = {}
    for images, tokens in their.dataloader:
        want |= zip(setting.numbers([(images, tokens)]), images, strict=True)
    assert len(want) == CAPTIONED
    info = setting.loader()
    assert (info.dataloader.num_samples, info.dataloader.num_batches) == (CAPTIONED, 6)
    orders = []
    for epoch in range(2):
        info.set_epoch(epoch)
        batches = [(images.clone(), tokens) for images, tokens in info.dataloader]
        order = setting.numbers(batches)
        assert sorted(order) == sorted(want) and len(batches) == 6
        for number, image in zip(order, torch.cat([i for i, _ in batches]), strict=True):
            assert (image - want[number]).abs().max() < 1.001 / 255 / 0.26
        orders.append(order)
    assert orders[0] != orders[1]
    assert setting.numbers(setting.loader(epoch=1).dataloader) == orders[1]
    validation = setting.numbers(setting.loader(is_train=False).dataloader)
    assert sorted(validation) == sorted(want) and validation not in orders


def test_it_resumes_in_the_middle_and_shards(setting: _Setting) -> None:
    whole = setting.numbers(setting.loader(epoch=4).dataloader)
    begun = setting.loader(epoch=4)
    stream = iter(begun.dataloader)
    first = setting.numbers([next(stream), next(stream)])
    resumed = setting.loader()
    resumed.dataloader.load_state_dict(begun.dataloader.state_dict())
    resumed.set_epoch(4)
    assert first + setting.numbers(resumed.dataloader) == whole
    ranks = [list(setting.loader(rank=rank, world_size=2).dataloader) for rank in range(2)]
    sizes = [[len(tokens) for _, tokens in batches] for batches in ranks]
    assert sizes == [[BATCH, BATCH, 5]] * 2
    numbers = [number for batches in ranks for number in setting.numbers(batches)]
    assert sorted(numbers) == sorted(whole)


def test_what_it_cannot_honour_it_says(setting: _Setting, caplog: pytest.LogCaptureFixture) -> None:
    for option, value in (("dataset_resampled", True), ("train_data_upsampling_factors", "1::2")):
        with pytest.raises(ValueError, match="--" + option.replace("_", "-")):
            setting.loader(**{option: value})
    setting.loader(train_num_samples=10)
    assert f"an epoch has all {CAPTIONED} pairs, not 10" in caplog.text


def test_a_small_run_of_the_benchmark(made_tree: Path, tmp_path: Path) -> None:
    from test_bench_workloads import run

    result = run("pairs", made_tree / "train", tmp_path)
    assert not [one["error"] for one in result["contenders"] if one["error"]]
