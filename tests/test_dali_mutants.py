"""DALI's loader with a line of it changed: tests of it must notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

import test_dali_failures as failures  # noqa: E402
import test_dali_simulated as simulated  # noqa: E402
from mutants import mutated  # noqa: E402

from fastdata.dali import batches, decoders, graph  # noqa: E402

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")

unasked = simulated.unasked


def first_batch(photographs: Path) -> None:
    simulated.test_a_gpus_pipeline_begins_with_a_whole_batch_of_photographs(photographs)


def options(photographs: Path) -> None:
    for given, load, fancy in (({}, 1.0, True), ({"hw_decoder_load": 0.5}, 0.5, True)):
        simulated.test_options_reach_the_decoder(photographs, given, load, fancy, False)


def reasons(photographs: Path) -> None:
    failures.test_a_batch_that_only_dali_dies_of_is_decoded_natively()


def formats(photographs: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        simulated.test_dali_gets_no_format_that_its_installation_lacks(patch, None)


def scans(photographs: Path) -> None:
    failures.test_files_damaged_in_place_are_the_same_to_both_loaders()


#: Each is (owner, function, line, instead, test).
MUTANTS: dict[str, tuple[Any, str, str, str, Callable[[Path], None]]] = {
    "a GPU's first batch is one image": (
        graph.Graph,
        "build",
        "1 if self.device_id is None else batch_size",
        "1",
        first_batch,
    ),
    "the first images are small": (
        decoders,
        "example",
        "(side, side)",
        "(8, 8)",
        first_batch,
    ),
    "the engine gets a share": (decoders, "arguments", '"hw_decoder_load": 1.0, ', "", options),
    "chroma is repeated": (
        decoders,
        "arguments",
        ', "jpeg_fancy_upsampling": True',
        "",
        options,
    ),
    "the user's options are lost": (
        graph.Graph,
        "_define",
        "**self.decoding",
        "**{}",
        options,
    ),
    "the reason is the first line": (
        batches,
        "_reason",
        '_HEADINGS.sub("", str(error), count=1)',
        "str(error)",
        reasons,
    ),
    "the sample is not named": (
        batches.DALIPipeline,
        "_warn",
        "if number is not None and",
        "if False and",
        reasons,
    ),
    "DALI gets every format": (
        batches.DALIPipeline,
        "_is_decoded",
        "return self._decodes[encoding]",
        "return True",
        formats,
    ),
    "DALI gets damaged scans": (
        batches.DALIPipeline,
        "_decode",
        '"scans": not',
        '"scans": False and not',
        scans,
    ),
}


@pytest.fixture(scope="module")
def photographs() -> Path:
    return simulated.packed(cmyk={9})


@pytest.mark.parametrize("name", MUTANTS)
def test_a_change_is_noticed(name: str, photographs: Path, unasked: None) -> None:
    owner, function, line, instead, test = MUTANTS[name]
    decoders.example.cache_clear()
    changed = mutated(owner, function, line, instead)
    others = [one for one in (graph, decoders) if owner is decoders and hasattr(one, function)]
    patches = [mock.patch.object(one, function, changed) for one in others or [owner]]
    try:
        for patch in patches:
            patch.start()
        # Warnings that a test did not expect are errors.
        with pytest.raises((AssertionError, UserWarning, pytest.fail.Exception)):
            test(photographs)
    finally:
        mock.patch.stopall()
        decoders.example.cache_clear()
