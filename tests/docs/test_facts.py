"""Facts on the pages: measured numbers and names of files are those of the repository."""

import re

from paged import DOCS, ROOT


def test_every_benchmark_is_in_the_results():
    """Numbers of docs/benchmarks.md stand in benchmarks/RESULTS.md."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").replace(",", "")
    there = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", results)}
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8").replace(",", "")
    numbers = [number for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", page) if "." in number or len(number) > 3]
    assert len(numbers) > 80
    assert [number for number in numbers if float(number) not in there] == []


def test_every_file_of_the_architecture_exists():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", page))
    assert len(named) > 40
    missing = {name for name in named if not any((place / name).exists() for place in (ROOT, ROOT / "src" / "regard"))}
    assert missing == set()
