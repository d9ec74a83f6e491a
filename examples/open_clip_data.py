"""Train CLIP with open_clip on a packed dataset of images and captions.

    fastdata convert webdataset --root tars --to shards --out pairs
    python examples/open_clip_data.py --train-data pairs --dataset-type webdataset \
        --model ViT-B-32 --batch-size 256 --workers 8

`get_fastdata_dataset` takes the place of open_clip's ``get_wds_dataset``: it has the same arguments
and returns the same kind of object. Run as a script, this file puts it there and starts open_clip's
own training with the command line that it was given.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import open_clip_train.data
import torch
from torch.utils.data import Subset

from fastdata import DataLoader, ImageDataset


def get_fastdata_dataset(
    args: Any,
    preprocess_img: Callable[[Any], Any],
    is_train: bool,
    epoch: int = 0,
    floor: bool = False,
    tokenizer: Any = None,
) -> open_clip_train.data.DataInfo:
    """Return open_clip's ``DataInfo`` of a packed dataset with a field ``txt``.

    An epoch has each pair once; rows without a caption are left out, as open_clip does. For
    training, the order is a function of (``args.seed``, epoch), and each rank has its share: as
    many pairs as the others, so fewer than ``args.world_size`` pairs come twice.
    ``dataloader.state_dict()`` is the position in an epoch, ``load_state_dict`` resumes there.

    Args:
        args: open_clip's; ``train_data`` or ``val_data`` is the dataset, ``workers`` the number of
            decode threads.
        preprocess_img: open_clip's transform.
        is_train: Whether to shuffle, and to read ``train_data``.
        epoch: The first epoch.
        floor: Whether to leave out the samples that fill no batch on every rank. Else the last
            batch is smaller.
        tokenizer: open_clip's.

    Raises:
        ValueError: ``args`` asks for samples drawn with replacement, or for weights of datasets.
    """
    for option in ("dataset_resampled", "train_data_upsampling_factors"):
        if is_train and getattr(args, option, None):
            flag = option.replace("_", "-")
            raise ValueError(f"--{flag}: an epoch has each pair once; leave it out")
    path = args.train_data if is_train else args.val_data
    pairs: Any = ImageDataset(path, fields=("image", "txt"), transform=preprocess_img)
    dataset: Any = pairs
    if pairs.source.field("txt").nullable:  # else the captions need not be read here
        captioned: Any = np.flatnonzero(pairs.column("txt").is_valid())
        dataset = Subset(pairs, captioned)
    wanted = args.train_num_samples if is_train else args.val_num_samples
    if wanted not in (None, len(dataset)):
        logging.warning("%s: an epoch has all %d pairs, not %d", path, len(dataset), wanted)

    def tokenized(batch: dict[str, Any]) -> tuple[Any, Any]:
        return batch["image"], tokenizer(batch["txt"])

    loader: Any = DataLoader(
        dataset,
        args.batch_size,
        shuffle=is_train,
        num_workers=args.workers,
        drop_last=is_train and floor,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.workers > 0,
        seed=args.seed,
        shard=(args.rank, args.world_size) if is_train else None,
        on_error="skip" if is_train else "drop",
        batch_transform=tokenized,
    )
    loader.num_batches, loader.num_samples = len(loader), len(dataset)
    loader.set_epoch(epoch)
    return open_clip_train.data.DataInfo(loader, shared_epoch=_Epoch(loader))


class _Epoch:
    """The loader's epoch, as open_clip sets it."""

    def __init__(self, loader: Any) -> None:
        self.set_value = loader.set_epoch


if __name__ == "__main__":
    from open_clip_train.main import main

    open_clip_train.data.get_wds_dataset = get_fastdata_dataset
    main(sys.argv[1:])
