"""The page of trained steps: whole, readable without a picture, and inert whatever models and sentences are called."""

import browser_visits
import pytest
from pages import Reading

from regard.comparison.pages import (
    SHOWN_SENTENCES,
    describe_difference,
    format_bytes,
    format_spread,
    linked_sentences,
    pair_page,
    road_page,
)

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
SPREAD = {"mean": 30.0, "low": 28.0, "high": 33.0, "deviation": 2.5}


def model(name, bleu=30.0):
    spreads = {key: SPREAD for key in ("chrf", "loss", "tokens_per_second", "seconds")}
    return {"name": name, "recipe": name, "about": "an idea", "parameters": 1000, "steps": 10, "tokens": 500,
            "memory": 3 << 20, "peak": None, **spreads, "bleu": {**SPREAD, "mean": bleu},
            "by_length": [{"least": least, "most": most, "pairs": 9, "bleu": SPREAD, "chrf": SPREAD}
                          for least, most in ((0, 10), (11, 20))],
            "curve": {"step": [1, 2], "tokens": [50, 100], "nll": [5.0, 4.0], "validation_step": [2.0],
                      "validation_nll": [4.5]},
            "flow": {"last": [0.1] * 10, "all": [1.0] * 10, "sentences": 16, "tokens": 30.0},
            "translation": HOSTILE, "attends": True, "signatures": {"bleu": "b", "chrf": "c"}}


def found(**changes):
    return {"kind": "road", "regard": "0", "seeds": 3, "beams": 1, "quick": True,
            "budget": {"said": "500 target tokens"}, "machine": {"device": "CPU", "threads": 2},
            "data": {"name": HOSTILE, "train": 90, "validation": 5, "test": 18, "tokenizer": "1f"},
            "sentence": {"source": HOSTILE, "reference": "r"}, "models": [model("one"), model(HOSTILE)], **changes}


@pytest.fixture
def page():
    return road_page(found(), {"one": None, HOSTILE: '<svg xmlns="http://www.w3.org/2000/svg"></svg>'})


def test_nothing_in_it_is_obeyed_or_asked_for(page):
    read = Reading(page)
    assert not {"script", "img", "link", "iframe", "a"} & set(read.names)
    assert not [name for name in read.attributes if name.startswith("on") or name in ("src", "href")]
    assert "alert(1)" in "".join(read.texts)


def test_all_parts_are_there(page):
    read = Reading(page)
    assert read.names.count("h1") == 1
    assert read.names.count("h2") == 6
    assert [name for name in ("caption", "figcaption", "thead", "details") if name not in read.names] == []
    assert "500 target tokens" in "".join(read.texts)
    assert "30.0 ± 2.5" in read.texts
    assert "This model has no attention." in read.texts


def test_one_seed_has_no_spread_and_says_so():
    assert format_spread({**SPREAD, "deviation": None}) == "30.0"
    assert "trained once" in road_page(found(seeds=1), {})
    assert (format_bytes(3 << 20), format_bytes(2048), format_bytes(None)) == ("3 MiB", "2 KiB", "")


def test_every_footnote_has_its_column(page):
    """A column that no model has a number for is left out, with its sentence."""
    assert all(text in page for text in ("long/short BLEU", "Long/short BLEU: ", "Where each looked"))
    assert "eak GPU memory" not in page
    short = [{**model(name), "by_length": model(name)["by_length"][:1], "peak": 5 << 20} for name in ("one", "two")]
    page = road_page(found(models=short), {})
    assert "ong/short BLEU" not in page
    assert page.count("eak GPU memory") == 2 + len(short)  # the head, its sentence, and the labels on narrow screens


@pytest.mark.browser
def test_a_browser_shows_it_in_light_and_dark_and_on_a_telephone(page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    with browser_visits.browser() as chromium:
        papers = set()
        for dark, wide in ((False, 1100), (True, 1100), (False, 360)):
            visit = browser_visits.Visit(chromium, file.as_uri(), offline=True, dark=dark, size=(wide, 800))
            visit.page.goto(visit.address)
            assert (visit.complaints, visit.strangers()) == ([], [])
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= wide
            papers.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            if wide == 360:  # all numbers are on the screen, each with the name of its column
                cells = visit.page.locator("td[data-label]").evaluate_all(
                    "all => all.map(one => [one.getBoundingClientRect().right, one.getBoundingClientRect().left])")
                assert cells
                assert all(0 <= left < right <= wide for right, left in cells)
            visit.close()
    assert len(papers) == 2


HOSTILE_PAIR_PAGE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


def found_pair_page(count=3, difference=2.0, p=0.01):
    one = {"first": 10.0, "second": 10.0 + difference, "difference": difference, "low": 0.5, "high": 3.0, "p": p}
    model = {"parameters": 1000, "bleu": 10.0, "chrf": 20.0, "loss": 1.5, "cut": 0,
             "signatures": {"bleu": "b", "chrf": "c"},
             "by_length": [{"least": 0, "most": 10, "pairs": 3, "bleu": 10.0, "chrf": 20.0}]}
    sentences = [{"number": number, "source": HOSTILE_PAIR_PAGE, "reference": "r", "first": "f", "second": f"s{number}",
                  "first_chrf": 10.0, "second_chrf": 10.0 + apart, "difference": apart}
                 for number, apart in enumerate([count - place - 0.5 for place in range(2 * count)])]
    return {"models": [{**model, "name": "old"}, {**model, "name": HOSTILE_PAIR_PAGE}], "pairs": 2 * count, "beams": 5,
            "draws": 1000, "regard": "0", "same": 1, "sentences": sentences, "difference": {"bleu": one, "chrf": one}}


def test_the_page_is_whole_and_nothing_in_it_is_obeyed():
    page = Reading(pair_page(found_pair_page()))
    assert not {"script", "img", "link", "iframe"} & set(page.names)
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "alert(1)" in "".join(page.texts)
    assert {"s0", "s5"} <= set(page.texts)


def test_differences_have_signs_and_units_on_a_narrow_screen_too():
    page = pair_page(found_pair_page(difference=-2.0))
    assert "−2.00" in page
    assert 'data-label="chrF">+2.5' in page  # the first row of the second's better sentences
    assert "nats per token" in page


def test_of_very_many_sentences_both_ends_are_shown_and_said():
    page = pair_page(found_pair_page(count=SHOWN_SENTENCES + 20))
    assert f"{SHOWN_SENTENCES} of {SHOWN_SENTENCES + 20} sentences" in page
    assert page.count("<tr>") < 2 * SHOWN_SENTENCES + 20


def test_chance_is_called_chance():
    assert "is better than" in describe_difference(found_pair_page(), "bleu")
    chance = describe_difference(found_pair_page(p=0.4), "chrf")
    assert "p = 0.400" in chance
    assert "is better" not in chance
    assert describe_difference(found_pair_page(difference=-2.0), "bleu").startswith("old is better")
    assert "the same" in describe_difference(found_pair_page(difference=0.0), "bleu")


def test_rows_link_to_the_pages_of_both_models():
    result = found_pair_page(count=20)
    chosen = linked_sentences(result, 2)
    assert [one["second"] for one in chosen] == ["s0", "s1", "s39", "s38"]
    page = Reading(pair_page(result, {one["number"]: f"sentences/{one['number'] + 1}.html" for one in chosen}))
    assert page.names.count("a") == 4
    assert "look at both" in page.texts
