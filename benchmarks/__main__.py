"""``python -m fastdata.benchmarks`` is ``fastdata bench``."""

import sys

from fastdata.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    main()
