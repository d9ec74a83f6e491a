"""`diagnose`: what makes loading a dataset slow on this machine, and what would be faster.

An image passes ``storage`` (`reading`), ``decode`` (`decoding`), ``memory copy`` and ``host to
device`` (`copies`), and then the training step. `diagnosis` measures the rate of each, `findings`
holds what was measured, and `advice` makes of that, as a pure function, which stage limits and
what to do. `report` shows it.
"""

from fastdata.doctor.advice import Advice, Verdict, bottleneck, judge
from fastdata.doctor.diagnosis import Diagnosis, diagnose, training_transform
from fastdata.doctor.findings import Alternatives, Data, Findings, Machine, Rates

__all__ = [
    "Advice",
    "Alternatives",
    "Data",
    "Diagnosis",
    "Findings",
    "Machine",
    "Rates",
    "Verdict",
    "bottleneck",
    "diagnose",
    "judge",
    "training_transform",
]
