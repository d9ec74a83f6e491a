"""NVIDIA DALI as the decoder of fastdata's loader; see docs/dali.md.

Only a `DALILoader` needs DALI, not this import.
"""

from fastdata.dali.loader import DALILoader

__all__ = ["DALILoader"]
