"""transformers' Trainer, as the guides of docs have it (make test-recipes)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from loader_data import SAMPLES, images
from recipe_packages import need
from resume_page import check_resumes
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.transforms import Compose, Normalize, RandomResizedCrop

need("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]


def as_model_takes(batch: Any) -> Any:
    return {"pixel_values": batch["image"], "labels": batch["label"], "index": batch["index"]}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.seen: list[int] = []
        self.evaluated: list[int] = []

    def forward(self, pixel_values: Any, labels: Any, index: Any) -> Any:
        (self.seen if self.training else self.evaluated).extend(index.tolist())
        logits = self.layer(pixel_values.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_every_sample_comes_once_an_epoch_natively(tmp_path: Path) -> None:
    import_torchvision()
    from transformers import Trainer, TrainingArguments

    class Native(Trainer):
        def loader(self, dataset: Any, batch_size: int, **options: Any) -> Any:
            return DataLoader(
                dataset,
                batch_size,
                shard="auto",
                num_workers=self.args.dataloader_num_workers,
                device=self.args.device,
                fields=("image", "label", "index"),
                batch_transform=as_model_takes,
                require_native=True,
                **options,
            )

        def get_train_dataloader(self) -> Any:
            seed, size = self.args.seed, self._train_batch_size
            return self.loader(self.train_dataset, size, shuffle=True, seed=seed)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return self.loader(eval_dataset or self.eval_dataset, self.args.eval_batch_size)

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=10,
        per_device_eval_batch_size=10,
        dataloader_num_workers=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        label_names=["labels"],
    )
    dataset = images(Compose([RandomResizedCrop(32), Normalize((0.5,) * 3, (0.2,) * 3)]))
    model = Model()
    trainer = Native(model, arguments, train_dataset=dataset, eval_dataset=dataset)
    trainer.train()
    first, second = model.seen[:SAMPLES], model.seen[SAMPLES:]
    assert sorted(first) == sorted(second) == list(range(SAMPLES)) and first != second
    trainer.evaluate()
    assert Counter(model.evaluated) == Counter(range(SAMPLES))
    assert trainer.callback_handler.train_dataloader.explain().startswith("native")


@pytest.mark.parametrize("kill", [6, 17])
def test_the_script_of_the_page_resumes(tmp_path: Path, kill: int) -> None:
    check_resumes(tmp_path, "transformers", kill)
