"""`diagnose`: what makes loading a dataset slow on this machine, and what would be faster.

An image passes ``storage`` (`reading`), ``decode`` (`decoding`), ``host to device`` (`copies`) and
then the training step. `diagnosis` measures the rate of each, `findings` holds what was measured;
`advice`, a pure function of that, says which stage limits and what to do, and `report` shows it.
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
