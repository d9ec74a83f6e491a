"""Shares of drawn mixtures: as stated in every window and epoch. `make campaign` draws 10,000."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from fastdata.plan.mixture import MixturePlan

#: Mixtures that are drawn.
RUNS = int(os.environ.get("FASTDATA_CAMPAIGN_MIXTURES", "100"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


def drawn_shares(draw: np.random.Generator) -> Sequence[float]:
    count = int(draw.choice([1, 2, 3, 5, 12, 40, 200]))
    if draw.random() < 0.3:
        shares = draw.integers(0, 9, count).astype(float)  # simple fractions, and zeros
    else:
        shares = draw.dirichlet(np.full(count, draw.choice([0.05, 0.5, 1, 20])))
    shares[draw.integers(count)] += 0.1
    return (shares / shares.sum()).tolist()


def test_shares_hold_in_every_window_of_drawn_mixtures() -> None:
    worst = dict.fromkeys(("window", "prefix"), 0.0)
    for run in range(SEED, SEED + RUNS):
        draw = np.random.default_rng(run)
        shares = drawn_shares(draw)
        sizes = draw.integers(1, 10 ** int(draw.integers(1, 8)), len(shares)).tolist()
        samples = int(draw.integers(1, 12_000))
        epoch = int(draw.choice([0, 1, 7, 10**6, 2**31]))
        plan = MixturePlan(sizes, lambda _: shares, False, samples, 1, run)
        sources, rows = plan(epoch, np.arange(samples))
        assert (rows >= 0).all()
        assert (rows < np.array(sizes)[sources]).all()
        drawn = np.zeros((samples + 1, len(shares)), np.int32)
        drawn[np.arange(1, samples + 1), sources] = 1
        wrong = np.cumsum(drawn, 0) - np.arange(samples + 1)[:, None] * np.array(shares)
        window = np.abs(np.diff(wrong[::1000], axis=0)).max(initial=0)
        # All draws so far, of all epochs.
        before = plan.drawn(epoch) - epoch * samples * np.array(shares)
        assert plan.drawn(epoch).sum() == epoch * samples
        prefix = np.abs(before).max() if epoch < 10**6 else 0
        worst["window"] = max(worst["window"], window)
        worst["prefix"] = max(worst["prefix"], np.abs(wrong).max(), prefix)
        assert (
            plan.drawn(epoch + 1).tolist()
            == (plan.drawn(epoch) + np.bincount(sources, minlength=len(shares))).tolist()
        )
    print(f"{RUNS:,} mixtures: off by at most {worst}")
    assert worst["window"] < 1 + 1e-6
    assert worst["prefix"] < 6
