"""What notebooks show of a translation, an alignment, a look and a trace: self-contained, escaped, and drawn."""

import base64
import copy
import io
import re
from html.parser import HTMLParser

import browser_visits
import pytest
import texting
import torch
from asking import without_attention
from trace_examples import hostile, translation

import regard
from regard.attention.look import ACCENT, INK, MAX_MAP_CELLS, MAX_MAPS, NOT_FINITE_COLOUR, PAPER, _map_png
from regard.tasks.alignment import Alignment, alignment_html

HOSTILE = '<script>alert(1)</script> & "x" \' </style><img src=x onerror=alert(1)>'


class Elements(HTMLParser):
    """The elements of a document with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def aligned():
    """Three words and two: 0-0, 1-1, and the last word of the source has no link."""
    weights = torch.tensor([[0.9, 0.05, 0.0], [0.05, 0.9, 0.0]])
    return Alignment(("a", "<b>", "c"), ("x", "y&"), weights)


def drawings():
    torch.manual_seed(0)
    task = texting.translator()
    hypothesis = regard.Translation(HOSTILE, -1.5, (), True, (regard.Translation(HOSTILE, -2.0, (), False),))
    return {"translation": task.translate(f"the dog {HOSTILE}", nbest=2, beams=2, max_length=6),
            "copied": copy.copy(hypothesis), "alignment": task.aligned(HOSTILE, HOSTILE), "words": aligned(),
            "look": regard.Look(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8)), "trace": translation(),
            "hostile": hostile()}


@pytest.mark.parametrize("name", ["translation", "copied", "alignment", "words", "look", "trace", "hostile"])
def test_a_drawing_has_no_script_no_link_and_no_id(name):
    """Only the page has a script, in a frame of its own, which may save files and nothing else."""
    shown = drawings()[name]._repr_html_()
    for tag, attributes in Elements(shown).found:
        if tag == "iframe":
            assert attributes.pop("sandbox") == "allow-scripts allow-downloads"
            assert attributes.pop("src").startswith("data:text/html;charset=utf-8;base64,")
        assert tag not in ("script", "link", "object", "img", "a"), tag
        assert not [key for key in attributes if key.startswith("on") or key in ("id", "src", "srcdoc")], attributes
        assert attributes.get("href", "data:image/png;base64,").startswith("data:image/png;base64,"), attributes
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in shown


def test_a_word_highlights_the_words_that_it_is_linked_to():
    shown = alignment_html(aligned())
    rules = dict(re.findall(r":has\(\.(\w+):hover\) \.(\w+)", shown))
    assert rules == {"s0": "t0", "s1": "t1", "t0": "s0", "t1": "s1"}
    titles = {attributes["class"]: attributes["title"] for tag, attributes in Elements(shown).found if tag == "span"}
    assert titles == {"s0": "x 0.90", "s1": "y& 0.90", "s2": "no link", "t0": "a 0.90", "t1": "<b> 0.90"}


def test_words_are_joined_as_in_the_text():
    task = texting.translator()
    shown = alignment_html(task.aligned("the dog, (here).", "le chien."))
    text = re.sub(r"<style>.*?</style>", "", shown)
    assert [re.sub("<[^>]*>", "", line) for line in re.findall(r"<div dir.*?</div>", text)] == [
        "the dog, (here).", "le chien."]


def test_a_translation_shows_text_score_and_alternatives():
    shown = drawings()["copied"]._repr_html_()
    assert "score -1.5, truncated" in shown
    assert shown.count("&lt;script&gt;") == 2
    assert "<small>-2</small>" in shown


def test_a_model_without_attention_shows_its_text():
    task = without_attention()
    assert not task.attends
    assert task.translate("the dog", max_length=4)._repr_html_().startswith('<div dir="auto">')


def pixels(png):
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(png))
    return image.size, [image.getpixel((x, y)) for y in range(image.height) for x in range(image.width)]


def test_the_map_of_a_head_has_a_pixel_for_each_weight():
    weights = torch.tensor([[0.0, 0.5, 1.0], [0.25, float("nan"), -1.0]])
    size, colours = pixels(_map_png(weights, 1.0))
    assert size == (3, 2)
    assert [colours[at] for at in (0, 2, 4, 5)] == [PAPER, INK, NOT_FINITE_COLOUR, PAPER]
    for at, share in ((1, 0.5), (3, 0.25)):
        want = [paper + (accent - paper) * share / 0.7 for paper, accent in zip(PAPER, ACCENT, strict=True)]
        assert colours[at] == pytest.approx(want, abs=1)


def test_the_maps_of_a_look_are_its_weights():
    torch.manual_seed(0)
    look = regard.Look(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8))
    shown = look._repr_html_()
    images = [base64.b64decode(data) for data in re.findall(r'base64,([^"]+)"', shown)]
    assert len(images) == 6
    weights = look.weights()
    for number, image in enumerate(images):
        size, colours = pixels(image)
        assert size == (7, 5)
        shares = (weights.flatten(0, 1)[number] / weights.max()).flatten()
        lightness = torch.tensor([sum(colour) for colour in colours])
        assert (lightness[shares.argsort()].diff() <= 0).all()  # more is darker
        assert colours[int(shares.argmax())] == INK or float(shares.max()) < 1.0
    assert re.findall(r">(\d, \d)</text>", shown) == ["0, 0", "0, 1", "0, 2", "1, 0", "1, 1", "1, 2"]
    assert f"5 queries (rows) × 7 keys (columns), weights from 0 (paper) to {float(weights.max()):.3g}" in shown


def test_a_large_look_shows_means_of_blocks_and_some_heads():
    count = MAX_MAP_CELLS * 3 + 1
    look = regard.Look(torch.randn(MAX_MAPS + 4, count, 2), torch.randn(MAX_MAPS + 4, count, 2))
    shown = look._repr_html_()
    assert shown.count("<image") == MAX_MAPS
    assert "mean of 4 × 4" in shown
    assert f"first {MAX_MAPS} of {MAX_MAPS + 4} maps" in shown


def test_an_empty_look_is_no_error():
    assert "0 queries" in regard.Look(torch.randn(2, 0, 4), torch.randn(2, 3, 4))._repr_html_()


@pytest.mark.browser
def test_a_browser_draws_them_without_a_request(tmp_path):
    page_file = tmp_path / "page.html"
    body = "<hr>".join([*(drawing._repr_html_() for drawing in drawings().values()), alignment_html(aligned())])
    page_file.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    with browser_visits.browser() as chromium:
        visit = browser_visits.Visit(chromium, page_file.as_uri(), offline=True)
        page = visit.open()
        background = "element => getComputedStyle(element).backgroundColor"
        words = page.locator("div[class^=regard-]").last
        before = words.locator(".t1").evaluate(background)
        words.locator(".s1").hover()
        assert words.locator(".t1").evaluate(background) != before
        assert words.locator(".t0").evaluate(background) == before
        widths = page.locator("svg").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
        frames = page.locator("iframe")
        count = frames.count()
        for number in range(count):  # the script of each page has drawn its tabs, and may write its state
            frames.nth(number).scroll_into_view_if_needed()
            frames.nth(number).content_frame.get_by_role("tab").nth(1).click()
        visit.close()
    assert visit.strangers() == []
    assert visit.complaints == []
    assert count == 3
    assert min(widths) > 100


def frame_page(shown):
    """The HTML inside of the frame."""
    [source] = re.findall(r'src="data:text/html;charset=utf-8;base64,([^"]+)"', shown)
    return base64.b64decode(source).decode()


def test_a_trace_and_a_translation_show_their_page():
    task, trace = texting.translator(), translation()
    assert "Le" in frame_page(trace._repr_html_())
    found = task.translate("the dog", max_length=4)
    assert found.trace.sides["source"].text == "the dog"
    page = frame_page(found._repr_html_())
    assert "decoder.1.cross" in page
    assert len(page) < 300_000
    with pytest.raises(ValueError, match="lost its model"):
        _ = copy.copy(found).trace


def test_records_of_a_watch_show_their_page():
    task = texting.translator()
    with regard.watch(task) as records:
        task.translate("the dog", max_length=4)
    assert "decoder.1.cross" in frame_page(records._repr_html_())
    with regard.watch(task) as records:
        pass
    assert records._repr_html_() is None
