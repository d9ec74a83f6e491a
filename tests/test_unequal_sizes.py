"""Images that keep sizes of their own reach a `collate_fn` natively, as Pillow makes them."""

from __future__ import annotations

from typing import Any

import pytest
from jpegs import encode, picture
from loader_data import CONTAINERS, folder, images
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")


from fastdata import DataLoader  # noqa: E402
from fastdata.dali import DALILoader  # noqa: E402
from fastdata.errors import SlowPathWarning, UsageError  # noqa: E402
from fastdata.transforms import (  # noqa: E402
    ColorJitter,
    Compose,
    RandomHorizontalFlip,
    RandomResize,
    Resize,
    Views,
)


def as_tuples(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def loaded(dataset: Any, **options: Any) -> list[Any]:
    loader = DataLoader(dataset, 7, num_workers=2, collate_fn=as_tuples, **options)
    assert loader.explain().startswith("native")
    return [image for batch in loader for image in batch[0]]


def torchvisions() -> list[Any]:
    v2 = import_torchvision().transforms.v2
    last = [v2.PILToTensor()]
    return [
        v2.Compose([v2.RandomHorizontalFlip(1), *last]),
        v2.Compose([v2.Resize(40), *last]),
        v2.Compose([v2.Resize(40, max_size=44), v2.RandomGrayscale(1), *last]),
        v2.Compose([v2.Resize(40), v2.Pad(3), *last]),
    ]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("number", range(4))
def test_every_kind_of_image_is_torchvisions(container: str, number: int) -> None:
    transform = torchvisions()[number]
    dataset = images(transform, container)
    found = loaded(dataset, shuffle=False)
    assert len({image.shape for image in found}) > 9
    for at, image in enumerate(found):
        expected = transform(dataset.open_image(at))
        assert image.shape == expected.shape
        assert (image.int() - expected.int()).abs().max() <= 1
    assert all(map(torch.equal, found, (one for one, _ in dataset.__getitems__(range(len(found))))))


def test_random_sizes_are_those_of_the_seed_for_any_number_of_threads() -> None:
    steps = [RandomResize(20, 60), RandomHorizontalFlip(), ColorJitter(0.4)]
    dataset = images(Compose(steps))
    found = loaded(dataset, shuffle=True, seed=3)
    loader = DataLoader(dataset, 5, num_workers=0, collate_fn=as_tuples, shuffle=True, seed=3)
    again = [image for batch in loader for image in batch[0]]
    assert all(map(torch.equal, found, again))
    assert len({image.shape for image in found}) > 9


def test_views_and_floats() -> None:
    transform = Views(Resize(30), Compose([Resize(20), RandomHorizontalFlip(1)]))
    for image, other in loaded(images(transform)):
        assert min(image.shape[1:]) == 30 and min(other.shape[1:]) == 20
    v2 = import_torchvision().transforms.v2
    steps = [v2.Resize(30), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    for image in loaded(images(v2.Compose(steps))):
        assert image.dtype == torch.float32 and image.max() <= 1


def test_a_substitute_brings_its_own_size() -> None:
    root = folder()
    (root / "a").mkdir()
    for number in range(12):
        data = encode(picture(60 + number, 50), "4:2:0")
        if number % 4 == 1:
            data = data[: len(data) // 3] + bytes(len(data) // 3)
        (root / "a" / f"{number:02}.jpg").write_bytes(data)
    dataset = import_torchvision().datasets.ImageFolder(root, RandomHorizontalFlip(0))
    with pytest.warns(UserWarning, match="3 samples could not be decoded"):
        found = loaded(dataset, on_error="skip", order="sequential")
    assert len(found) == 12 and len({image.shape[2] for image in found}) == 9


def test_batches_of_tensors_still_need_one_size() -> None:
    dataset = images(Resize(40))
    with pytest.warns(SlowPathWarning, match="different sizes after Resize"):
        loader = DataLoader(dataset, 4)
    with pytest.raises(RuntimeError, match="stack"):
        list(loader)
    with pytest.raises(UsageError, match="different sizes"):
        DALILoader(dataset, 4, collate_fn=as_tuples, device="cpu")
