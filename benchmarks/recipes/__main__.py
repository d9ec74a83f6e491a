"""``python -m fastdata.benchmarks.recipes``."""

from fastdata.benchmarks.recipes import main

if __name__ == "__main__":
    main()
