"""The table of defaults by the number of pairs is that of the code."""

import re

from paged import DOCS
from planned import GPU, SIZES, ready


def test_the_table_of_choices_is_what_is_chosen():
    page = (DOCS / "howto" / "train.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")]
            for line in re.findall(r"^\| [\d,]+ \|.*$", page, re.MULTILINE)]
    assert [row[0] for row in rows] == [f"{count:,}" for count in SIZES[1:]]
    for count, row in zip(SIZES[1:], rows, strict=True):
        made = ready(count, GPU)
        assert row[1:] == [made.tables["recipe"], f"{made.model.source_vocab_size:,}",
                           f"{made.settings.batches.max_tokens:,}", str(made.model.encoder.dropout),
                           made.model.encoder.norm_position, f"{made.settings.epochs:.0f}"]
