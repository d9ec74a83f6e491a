"""NVIDIA DALI as the engine behind fastdata's loader; see docs/dali.md.

Importing this needs no DALI; making a `DALILoader` does.
"""

from fastdata.dali.loader import DALILoader

__all__ = ["DALILoader"]
