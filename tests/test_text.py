"""Text for people."""

from __future__ import annotations

from fastdata.text import aligned, human_count


def test_a_number_of_things() -> None:
    assert human_count(1, "sample") == "1 sample"
    assert human_count(0, "sample") == "0 samples"
    assert human_count(1_000, "class", "classes") == "1,000 classes"
    assert human_count(1, "class", "classes") == "1 class"


def test_columns_begin_or_end_together_and_nothing_is_cut() -> None:
    rows = [["name", "images/s", "note"], ["a" * 200, "12,345", ""], ["写真", "7", "wide"]]
    lines = aligned(rows, right=(1,))
    assert lines == [
        "name" + " " * 196 + "  images/s  note",
        "a" * 200 + "    12,345",
        "写真" + " " * 196 + "         7  wide",  # two columns a character
    ]
