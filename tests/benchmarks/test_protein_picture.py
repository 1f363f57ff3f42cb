"""The picture of attention in proteins: drawn from the numbers beside it, which are those that the page names."""

import importlib.util
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
NUMBERS = json.loads((ROOT / "docs" / "pictures" / "proteins.json").read_text())


@pytest.fixture(scope="module")
def picture():
    """The module benchmarks/protein_picture.py."""
    spec = importlib.util.spec_from_file_location("protein_picture", ROOT / "benchmarks" / "protein_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_drawn_from_its_numbers(picture):
    drawn = picture.draw(NUMBERS["helix"], NUMBERS["hairpin"])
    assert picture.draw(NUMBERS["helix"], NUMBERS["hairpin"]) == drawn
    with Image.open(io.BytesIO(drawn)) as image, Image.open(ROOT / "docs" / "pictures" / "proteins.png") as file:
        new, old = (np.asarray(one.convert("L").resize((200, 120)), float) for one in (image, file))
    assert np.abs(new - old).mean() < 3  # other versions of matplotlib place letters a little differently


def test_the_page_has_the_measured_ratios():
    helix, hairpin = NUMBERS["helix"], NUMBERS["hairpin"]
    turn = [at for at, distance in enumerate(helix["distances"]) if abs(distance) in (3, 4)]
    near = [at for at, distance in enumerate(hairpin["distance from the partner"]) if abs(distance) <= 1]
    weights = {name: np.array(helix[name])[turn].mean() for name in ("helix", "coil")}
    ratios = [weights["helix"] / weights["coil"]]
    there, strands, mirrored = (np.array(hairpin[name])[near].mean() for name in ("weight", "strands", "mirrored"))
    ratios += [there / strands, there / mirrored]
    assert ratios == pytest.approx([helix["turn helix / coil"], hairpin["ratio to strands"],
                                    hairpin["ratio to mirrored"]], rel=1e-3)
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "road" / "beyond-text.md").read_text())
    assert all(f"{ratio:.2f} times" in page for ratio in ratios)
