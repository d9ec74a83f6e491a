"""``python -m fastdata`` is the ``fastdata`` command."""

from fastdata.cli import main

if __name__ == "__main__":
    main()
