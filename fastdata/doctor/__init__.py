"""`diagnose`: the stage that limits loading a dataset on this machine, and what would be faster.

`diagnosis` runs the loader over samples of the dataset, out of the page cache and in it: from its
statistics come the rates of reading and decoding, which `findings` holds beside the rate of the
training step. `advice`, a pure function of them, says which limits and what to do; `report` shows
it.
"""

from fastdata.doctor.advice import Advice, Bottleneck, Diagnosis, judge
from fastdata.doctor.diagnosis import diagnose, training_transform
from fastdata.doctor.findings import DatasetFacts, Findings, Machine, Rates

__all__ = [
    "Advice",
    "Bottleneck",
    "DatasetFacts",
    "Diagnosis",
    "Findings",
    "Machine",
    "Rates",
    "diagnose",
    "judge",
    "training_transform",
]
