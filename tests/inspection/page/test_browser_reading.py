"""The view "Read" in a browser: the answer in words, ribbons, rivals, results; on a desk, a phone, printed, saved."""

import csv
import html
import io
import math
import re
import statistics
from dataclasses import replace
from xml.etree import ElementTree

import browser_visits
import printed_texts
import pytest
import reading_examples
import texting
import trace_examples
from reading_examples import LOGS, LOOKED, MATTERED, SOURCE, TARGET

from regard.data.tokenizer.interface import Word
from regard.inspection.page.server import PageServer
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TracedAttention, TracedInfluence, TracedPredictions, TraceSide
from regard.tasks import traces

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
SCREENS = {"desk": (1440, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Documents to the address of a page on the disk."""
    folder = tmp_path_factory.mktemp("readings")

    def write(table):
        path = folder / f"{len([*folder.iterdir()])}.html"
        path.write_text(reading_examples.html(table), encoding="utf-8")
        return path.as_uri()

    return write


@pytest.fixture(scope="module")
def address(written):
    return written(reading_examples.with_influence())


@pytest.fixture
def visit(chromium, address):
    with browser_visits.visiting(chromium, address, offline=True, size=SCREENS["desk"]) as found:
        found.open("read").wait_for_selector(".ribbons path")
        yield found


def shares(row):
    """What a row of influence is shown as."""
    values = [max(0.0, value or 0.0) for value in row]
    return [value / sum(values) for value in values] if sum(values) > 0.3 else [0.0] * len(values)


def test_the_verdict_names_the_word_without_effect(visit):
    told = visit.page.locator(".verdict").inner_text()
    assert "two" in told
    assert "0.74" in told  # where it was looked at, although it changed nothing
    assert visit.page.locator(".w.idle").all_inner_texts() == ["two"]
    visit.page.locator(".fact", has_text="two").click()
    assert visit.page.locator('.line.source .w[aria-pressed="true"]').inner_text() == "two"
    assert "word=s1" in visit.page.url


@pytest.mark.parametrize("show", ["mattered", "looked"])
def test_pointing_at_a_word_marks_the_largest_share_at_once(visit, show):
    page = visit.open("read", show=show)
    page.wait_for_selector(".ribbons path")
    rows = [shares(row) for row in MATTERED] if show == "mattered" else LOOKED[:, :5].tolist()
    times = []
    for at, word in enumerate(TARGET):
        found, took = page.evaluate("""(at) => {
            const word = document.querySelectorAll(".line.target .w")[at], began = performance.now();
            word.dispatchEvent(new PointerEvent("pointerover", { bubbles: true, pointerType: "mouse" }));
            const most = [...document.querySelectorAll(".line.source .w.most")].map((one) => one.textContent);
            return [most, performance.now() - began];
        }""", at)
        assert found == [SOURCE[max(range(5), key=rows[at].__getitem__)]], word
        times.append(took)
    assert statistics.median(times) < 50
    labels = page.locator(".ribbons text").all_text_contents()
    assert labels == [f"{round(100 * share)} %" for share in rows[4] if share >= 0.06]


def test_ribbons_are_the_shares_from_six_percent(visit):
    drawn = visit.page.evaluate("""() => [...document.querySelectorAll(".ribbons path")].map((one) =>
        [Number(one.dataset.row), Number(one.dataset.column)])""")
    want = [[i, j] for i in range(5) for j, share in enumerate(shares(MATTERED[i])) if share >= 0.06]
    assert sorted(drawn) == want


def test_what_is_left_out_is_told_in_nats(visit):
    told = visit.page.locator(".line.source .cell small").all_inner_texts()
    sums = [sum(max(0.0, row[j] or 0.0) for row in MATTERED[:5]) for j in range(5)]
    assert told[1] == "no effect"
    for text, want in zip(told, sums, strict=True):
        if text != "no effect":
            assert browser_visits.number(text.split()[0]) == pytest.approx(want, abs=0.51 if want >= 9.95 else 0.051)


def test_target_words_have_their_probability_and_rivals(visit):
    cells = visit.page.locator(".line.target .cell").all()
    for cell, log in zip(cells, LOGS, strict=False):
        probability = math.exp(log)
        shown = cell.locator("small").inner_text()
        assert shown == (">99 %" if probability >= 0.995 else f"{round(100 * probability)} %")
    assert [one.inner_text() for one in cells[2].locator(".rival").all()] == ["sont 41 %"]
    cells[2].locator(".rival").click()
    command = visit.page.locator(".detail pre").inner_text()
    assert command == "regard translate my-model 'The two cats slept .' --prefix 'Les chats sont'"


def test_the_numbers_of_the_results_fall(visit):
    page = visit.page
    told = [browser_visits.number(text) for text in page.locator(".results .number").all_inner_texts()]
    search = reading_examples.search()
    want = [search.nodes[end].total / length for end, length in zip(search.best, (6, 6, 2), strict=True)]
    assert told == pytest.approx(want, abs=0.006)
    assert told == sorted(told, reverse=True)
    assert "sont 41 %" in page.locator(".results li").nth(1).inner_text()
    page.locator(".results button").nth(1).click()
    page.wait_for_selector("#view.search")
    assert "node=9" in page.url
    leaves = sorted(page.locator(".leaf .number").all_inner_texts())
    assert leaves == [f"{rank + 1}. {number:.2f}".replace("-", "−") for rank, number in enumerate(told)]


def test_scores_of_a_trace_are_what_is_shown(chromium, written):
    table = reading_examples.with_influence()
    nodes = table["traces"][0]["search"]
    nodes["ranked_by"], nodes["nodes"]["score"] = "total", {"5": -1.25, "9": -2.5, "10": -3.75}
    with browser_visits.visiting(chromium, written(table)) as visit:
        page = visit.open("read")
        assert page.locator(".results .number").all_inner_texts() == ["−1.25", "−2.50", "−3.75"]


def test_keys_walk_the_words_and_escape_unpins(visit):
    page = visit.page
    page.locator(".line.target .w").first.focus()
    stops = page.evaluate("() => [...document.querySelectorAll('.stage .w')].map((one) => one.tabIndex)")
    assert stops.count(0) == 2  # one for each sentence
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.textContent") == "ont"
    page.keyboard.press("Enter")
    assert page.locator('.w[aria-pressed="true"]').all_inner_texts() == ["ont"]
    browser_visits.until(page, "() => /ont.*slept/.test(document.querySelector('[role=status]').textContent)")
    page.keyboard.press("ArrowUp")  # to the far end of the widest ribbon
    assert page.evaluate("() => document.activeElement.textContent") == "slept"
    page.keyboard.press("Escape")
    assert page.locator('.w[aria-pressed="true"]').count() == 0
    assert "word=" not in page.url


def test_a_link_opens_what_was_pinned(visit):
    page = visit.open("read", show="both", word="t2")
    page.reload()
    page.wait_for_selector('.w[aria-pressed="true"]')
    assert page.locator('.w[aria-pressed="true"]').all_inner_texts() == ["ont"]
    assert page.locator('.toggle input[value="both"]').is_checked()


def test_a_head_is_looked_through_and_kept(visit):
    page = visit.page
    before = page.locator(".ribbons path").count()
    page.locator(".mini").nth(2).hover()  # the decoder's attention to its own words: arcs
    browser_visits.until(page, "() => document.querySelectorAll('.ribbons path.arc').length > 0")
    page.mouse.move(5, 5)
    browser_visits.until(page, f"() => document.querySelectorAll('.ribbons path.ribbon').length === {before}")
    page.locator(".mini").nth(5).click()
    assert "attention=2" in page.url
    assert "head=1" in page.url
    flipped = LOOKED.flip(1)[:5, :5]
    drawn = page.evaluate("""() => [...document.querySelectorAll(".ribbons path")].map((one) =>
        [Number(one.dataset.row), Number(one.dataset.column)])""")
    assert sorted(drawn) == [[i, j] for i in range(5) for j in range(5) if flipped[i, j] >= 0.06]


@pytest.mark.parametrize("screen", SCREENS)
def test_words_and_links_are_in_the_first_screen(chromium, address, screen):
    with browser_visits.visiting(chromium, address, size=SCREENS[screen]) as visit:
        page = visit.open()
        page.wait_for_selector(".ribbons path")
        boxes = page.evaluate("""() => [...document.querySelectorAll(".stage .w, .ribbons path")].map((one) => {
            const { left, top, right, bottom } = one.getBoundingClientRect();
            return [left, top, right, bottom];
        })""")
        assert len(boxes) > 14
        width, height = SCREENS[screen]
        for left, top, right, bottom in boxes:
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
        if screen == "phone":  # two columns, and a tap has an effect
            page.locator(".line.target .w").nth(2).click()
            assert page.locator(".line.source .w.most").inner_text() == "slept"
            assert page.locator(".strip").get_attribute("open") is None


def test_without_influence_the_page_says_how_to_get_it(chromium, filed):
    with browser_visits.visiting(chromium, filed(reading_examples.reading())) as visit:
        page = visit.open("read")
        page.wait_for_selector(".ribbons path")
        assert page.locator(".read-grid .toggle").count() == 0
        assert "regard look" in page.locator(".method").inner_text()
        assert "ont" in page.locator(".verdict").inner_text()  # 50 %: doubted


def test_each_line_takes_the_direction_of_its_text(chromium, written):
    words = ["نام", "القط", "في", "الحديقة", "."]
    table = reading_examples.with_influence()
    side = reading_examples.side(words, "</s>")
    own = table["traces"][0]["sides"]["source"]
    own["tokens"], own["text"] = list(side.tokens), side.text
    for word, place in zip(own["words"], side.words, strict=True):
        word["start"], word["end"] = place.start, place.end
    with browser_visits.visiting(chromium, written(table)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".ribbons path")
        middles = {}
        for line in ("source", "target"):
            middles[line] = page.evaluate("""(line) => [...document.querySelectorAll(`.line.${line} .w`)].map((one) =>
                one.getBoundingClientRect().left)""", line)
        assert middles["source"] == sorted(middles["source"], reverse=True)  # the first word is the rightmost
        assert middles["target"] == sorted(middles["target"])
        page = visit.open("try")
        assert page.locator("h1").get_attribute("dir") == "ltr"  # the title is still the English one


def test_everything_is_printed(chromium, address):
    with browser_visits.visiting(chromium, address, size=(700, 900)) as visit:
        for view in ("read", "search"):
            page = visit.open(view, dropped="yes", matrix="yes")
            page.wait_for_timeout(200)
            page.emulate_media(media="print")
            cut = page.evaluate("""() => [...document.querySelectorAll("#view *")].filter((one) => {
                const look = getComputedStyle(one);
                return one.clientWidth && look.overflowX !== "visible" && look.display !== "-webkit-box"
                    && !one.matches(".visually-hidden, .token, .node, .mini, .bar, .track, legend, summary *")
                    && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1);
            }).map((one) => one.className)""")
            assert cut == []
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
            sticky = page.evaluate("""() => [...document.querySelectorAll("#view *")].filter((one) =>
                getComputedStyle(one).position === "sticky").length""")
            assert sticky == 0
            printed = printed_texts.texts(page.pdf(print_background=True))
            page.emulate_media(media="screen")
            if view == "read":
                assert [text for text in printed if text in {*SOURCE, *TARGET}][-10:] == [*SOURCE, *TARGET]
            else:
                boxes = page.locator('[role="treeitem"]').evaluate_all("(all) => all.map((one) => one.title)")
                assert len(boxes) > 3
                assert set(boxes) <= set(printed)


def test_the_picture_is_saved_with_real_text(visit):
    page = visit.page
    with page.expect_download() as waiting:
        page.locator(".saving button", has_text="SVG").click()
    root = ElementTree.parse(waiting.value.path()).getroot()
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in texts if word in {*SOURCE, *TARGET}] == [*SOURCE, *TARGET]
    assert "no effect" in texts
    assert len([*root.iter("{http://www.w3.org/2000/svg}path")]) == page.locator(".ribbons path").count()
    with page.expect_download() as waiting:
        page.locator(".saving button", has_text="PNG").click()
    assert waiting.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with page.expect_download() as waiting:
        page.locator(".saving button", has_text="CSV").click()
    rows = [*csv.reader(io.StringIO(waiting.value.path().read_text("utf-8"), newline=""))]
    assert rows[0][1:] == SOURCE
    assert [row[0] for row in rows[1:]] == TARGET
    got = [[float(cell) for cell in row[1:]] for row in rows[1:]]
    assert got == [pytest.approx(row, abs=1e-6) for row in MATTERED[:5]]


def test_a_rival_is_forced_where_there_is_a_model(chromium):
    asked = []

    def answer(request):
        asked.append(request)
        return reading_examples.reading(seed=5)

    with (PageServer([reading_examples.reading()], what_if=answer) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.locator(".line.target .rival", has_text="sont").click()
        page.wait_for_selector("#view.try .result h2")
        assert [(one.text, one.prefix) for one in asked] == [("The two cats slept .", "Les chats sont")]
        page = visit.open("read", prefix="")
        page.locator(".line.source .w", has_text="two").click()
        page.get_by_role("button", name="Edit this word").click()
        page.wait_for_selector(".in-place")
        page.keyboard.type("three")
        page.keyboard.press("Enter")
        page.wait_for_selector("#view.try .result h2")
        assert asked[-1].text == "The three cats slept ."
        assert page.locator(".result del").count() == 0  # the same output: nothing to strike out


def nats(page):
    """What stands under each source word, in nats; 0 for no effect."""
    told = page.locator(".line.source .cell small").all_inner_texts()
    return [0.0 if text == "no effect" else browser_visits.number(text.split()[0]) for text in told]


def test_a_click_on_a_group_leaves_out_each_of_its_words(chromium):
    """What is shown then is what a loop over the words says; the groups share their sums before."""
    trace = reading_examples.in_groups(leave_out=reading_examples.leave_out)
    sums = [sum(max(0.0, row[j] or 0.0) for row in MATTERED[:5]) for j in range(5)]
    with (PageServer([trace]) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.wait_for_selector(".ribbons path")
        assert page.locator(".line.source .grouped").all_inner_texts() == SOURCE
        title = page.locator(".line.source .cell small").first.get_attribute("title")
        assert "2 words" in title
        before = nats(page)
        assert before[0] == before[1]
        page.locator(".line.source .w", has_text="slept").click()
        browser_visits.until(page, "() => document.querySelectorAll('.line.source .grouped').length === 2")
        assert page.locator('.w[aria-pressed="true"]').all_inner_texts() == ["slept"]
        assert page.evaluate("() => document.activeElement.textContent") == "slept"
        page.locator(".line.source .w", has_text="two").click()
        browser_visits.until(page, "() => !document.querySelector('.line.source .grouped')")
        for shown, want in zip(nats(page), sums, strict=True):
            assert shown == pytest.approx(want if want > 0.3 else 0.0, abs=0.51 if want >= 9.95 else 0.051)
        assert "two" in page.locator(".verdict").inner_text()
        asked = [url for url in visit.asked if url.endswith("influence.json")]
        assert len(asked) == 2


def test_a_group_in_a_file_says_how_many_words_and_the_command(chromium, filed):
    with browser_visits.visiting(chromium, filed(reading_examples.in_groups())) as visit:
        page = visit.open("read")
        page.wait_for_selector(".ribbons path")
        title = page.locator(".line.source .cell small").nth(3).get_attribute("title")
        assert "3 words" in title
        assert "regard look my-model TEXT" in title
        page.locator(".line.source .w").nth(3).click()
        assert "regard look my-model TEXT" in page.locator(".detail").inner_text()
        assert page.locator(".line.source .grouped").count() == 5


def test_influence_that_was_left_out_is_computed_on_request(chromium):
    trace = replace(reading_examples.reading(), leave_out=reading_examples.leave_out)
    with (PageServer([trace]) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.get_by_role("button", name="Compute what mattered").click()
        page.wait_for_selector(".read-grid .toggle")
        assert page.locator(".line.source .grouped").count() == 5


def test_a_text_that_a_language_model_reads(chromium):
    """Surprisal over the text, rivals at each place, the next token, and what a word owes to its context."""
    def refined(numbers):
        values = ((None, None), (None, None), (0.4, None), (2.5, 0.5))
        return TracedInfluence("text", "text", tuple((number,) for number in numbers), values)

    with (PageServer([replace(reading_examples.predicted(), leave_out=refined)]) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.wait_for_selector(".shaded.rest .surprising")
        assert page.locator(".surprising").all_inner_texts() == ["big", "dog", "sleeps"]  # the first has no context
        shades = page.locator(".surprising").evaluate_all(
            "(all) => all.map((one) => Number(one.style.getPropertyValue('--surprise')))")
        assert shades == pytest.approx([0.5 / 8, 4 / 8, 0.1 / 8], abs=1e-3)
        verdict = page.locator(".verdict").inner_text()
        assert "dog (2 %; expected cat 82 %)" in verdict
        assert "74 %" in verdict  # the full stop comes next
        assert f"{(0.5 + 4.0 + 0.1) / 3:.2f} nats" in page.locator("#view").inner_text()
        page.locator(".shaded .w").nth(2).hover()
        browser_visits.until(page, "() => /cat 82/.test(document.querySelector('.detail').textContent)")
        assert "house 5 %" in page.locator(".detail").inner_text()
        page.locator(".shaded .w").nth(3).click()
        page.mouse.move(5, 5)
        browser_visits.until(page, "() => document.querySelector('.detail .rival')")
        assert page.locator(".detail .rival").inner_text() == "big dog"
        assert page.locator(".shaded .w.most").all_inner_texts() == ["big", "dog"]
        page.locator(".detail .rival").click()
        browser_visits.until(page, "() => /big 2\\.50 nats/.test(document.querySelector('.detail').textContent)")
        assert page.locator(".shaded .w.most").all_inner_texts() == ["big"]


def test_a_text_with_a_blank_names_what_fills_it(chromium, filed):
    tokens = ("▁The", "▁black", "<mask>", "▁sle", "eps", ".")
    look = trace_examples.looks(1, 6, 6)
    predictions = TracedPredictions("text", (None,) * 6, ((), (), ("▁cat", "▁dog"), (), (), ()),
                                    ((), (), (-0.5, -2.0), (), (), ()))
    trace = Trace({"text": TraceSide(tokens, "The black ___ sleeps.")},
                  (TracedAttention("encoder.0.self", "text", "text", look, 0, "self"),), predictions=predictions)
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .w")
        assert "<mask>: cat 61 %, dog 14 %" in page.locator(".verdict").inner_text()
        assert page.locator(".shaded").inner_text() == "The black <mask> sleeps."
        assert "regard look MODEL TEXT" in page.locator(".reading").inner_text()


def test_equal_words_are_told_apart_and_marks_are_not_named(chromium, filed):
    text = "the dog, the cat"
    words = tuple(Word(text.index(word, at), text.index(word, at) + len(word), place, place)
                  for place, (word, at) in enumerate((("the", 0), ("dog", 0), (",", 0), ("the", 5), ("cat", 0))))
    side = TraceSide(("▁the", "▁dog", ",", "▁the", "▁cat"), text, words)
    influence = TracedInfluence("label", "text", tuple((place,) for place in range(5)), ((0.0, 0.0, 9.0, 3.0, 1.0),))
    trace = Trace({"text": side, "label": TraceSide(("warm",))},
                  (TracedAttention("encoder.0.self", "text", "text", trace_examples.looks(1, 5, 5), 0, "self"),),
                  influence=influence)
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .w")
        told = page.locator(".verdict").inner_text()
        assert "What mattered most: the (2nd), cat. Without effect: the (1st), dog." in told


def test_what_mattered_for_a_blank_is_shown_at_once(chromium, filed):
    trace = traces.trace_input(texting.filler(), "the big ___ sleeps.", influence_limit=64)
    blank = next(row for row in trace.influence.values if any(value is not None for value in row))
    strongest = max(range(len(blank)), key=lambda number: blank[number] or 0.0)
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .w")
        assert page.locator(".shaded .w").all_inner_texts() == ["the", "big", "___", "sleeps", "."]
        assert page.locator(".shaded .w.on").inner_text() == "___"
        word = page.locator(".shaded .w").nth(strongest).inner_text()
        assert f"owes most to {word} {blank[strongest]:.2f} nats" in page.locator(".detail").inner_text()
        page.locator(".shaded .w").first.hover()
        assert "fills blanks" in page.locator(".detail").inner_text()


def test_a_classified_text_has_its_labels_and_what_each_word_adds(chromium):
    def refined(numbers):
        return TracedInfluence("label", "text", tuple((number,) for number in numbers), ((-0.75, 0.25),))

    with (PageServer([reading_examples.classified(leave_out=refined)]) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.wait_for_selector(".shaded .note")
        verdict = page.locator(".verdict").inner_text()
        assert "warm (82 %; cold 18 %)" in verdict
        assert "good" in verdict
        assert page.locator(".shaded .note").all_inner_texts() == ["1.25", "−0.50", ""]
        page.locator(".shaded .w", has_text="film").click()
        browser_visits.until(page, "() => !document.querySelector('.shaded .grouped')")
        assert page.locator(".shaded .note").all_inner_texts() == ["1.25", "−0.75", "0.25"]
        assert page.locator(".note.against").all_inner_texts() == ["−0.75"]


def test_a_click_on_a_block_of_an_image_makes_each_patch_grey(chromium):
    def refined(numbers):
        return TracedInfluence("label", "image", tuple((number,) for number in numbers), ((0.0, 3.0),))

    with (PageServer([reading_examples.patched(leave_out=refined)]) as server,
          browser_visits.visiting(chromium, server.address, size=SCREENS["desk"]) as visit):
        page = visit.open("read")
        page.wait_for_selector("canvas.picture")
        assert "cat (90 %; dog 9 %)" in page.locator(".verdict").inner_text()
        box = page.locator("canvas.picture").nth(1).bounding_box()
        page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
        browser_visits.until(page, "() => /row 1, column 2/.test(document.querySelector('.verdict').textContent)")
        assert "3.00 nats" in page.locator(".verdict").inner_text()


def test_two_models_print_both_outputs_and_compare_shared_words(chromium, filed):
    other = reading_examples.reading(seed=3)
    words = ["Les", "deux", "chats", "ont", "dormi", "."]
    sides = {**other.sides, "target": reading_examples.side(words, "</s>")}
    cross = TracedAttention("decoder.0.cross", "target", "source", trace_examples.looks(2, 7, 6), 0, "cross")
    second = Trace(sides, (cross,), other.title, "second", None)
    with browser_visits.visiting(chromium, filed(reading_examples.reading(), second)) as visit:
        page = visit.open("compare", trace2=1)
        browser_visits.until(page, "() => document.querySelectorAll('.chart-frame').length === 3")
        told = page.locator("#view").inner_text()
        assert " ".join(TARGET) in told
        label = page.locator(".chart-frame canvas").nth(2).get_attribute("aria-label")
        assert re.search(r"\b6 rows and 6 columns", label)  # all but "deux"


def test_an_image_is_shown_with_its_pixels(chromium, written):
    table, pixels = reading_examples.image()
    with browser_visits.visiting(chromium, written(table)) as visit:
        page = visit.open()
        page.wait_for_selector("canvas.picture")
        seen = page.evaluate("""() => {
            const canvas = document.querySelector("canvas.picture");
            return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
        }""")
        assert seen[::4] == list(pixels)
        assert seen[2::4] == list(pixels)
        tabs = page.locator('[role="tab"]').all_inner_texts()
        assert tabs == ["Read", "Heads", "Compare"]
        assert "␣" not in page.locator("#view").inner_text()


def test_labels_are_a_track_under_the_words(chromium, filed):
    trace = reading_examples.labelled()
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .labelled")
        assert page.locator(".shaded .w").all_inner_texts() == ["Ada", "saw", "Paris"]
        assert page.locator(".shaded .label").all_inner_texts() == ["B-PER", "O", "B-LOC"]
        kinds = page.locator(".shaded .label").evaluate_all("(all) => all.map((one) => one.dataset.kind)")
        assert kinds[1] == "none"
        assert kinds[0] != kinds[2]
        page.locator(".shaded .w").nth(2).hover()
        browser_visits.until(page, "() => document.querySelector('.w.most')")
        mean = trace.attentions[0].look.weights().mean(0)[2]
        assert page.locator(".w.most").inner_text() == ["Ada", "saw", "Paris"][int(mean.argmax())]


def test_a_continuation_has_its_surprisal(chromium, filed):
    with browser_visits.visiting(chromium, filed(reading_examples.continued())) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .surprising")
        assert page.locator(".surprising").all_inner_texts() == ["dog", "sleeps"]  # not the prompt
        titles = page.locator(".surprising").evaluate_all("(all) => all.map((one) => one.title)")
        assert "61 %" in titles[0]
        assert "2.00 nats" in titles[1]
        assert "1.25 nats" in page.locator("#view").inner_text()
        assert page.locator('[role="tab"]').all_inner_texts() == ["Read", "Heads", "Try", "Compare"]


def test_a_page_in_a_frame_of_a_notebook_works(chromium, tmp_path):
    """Without an address of its own, and in a sandbox."""
    page_text = html.escape(reading_examples.html(reading_examples.with_influence()))
    path = tmp_path / "notebook.html"
    path.write_text(f'<iframe sandbox="allow-scripts" width="1000" height="700" srcdoc="{page_text}"></iframe>',
                    encoding="utf-8")
    with browser_visits.visiting(chromium, path.as_uri(), size=(1100, 800)) as visit:
        visit.page.goto(path.as_uri())
        frame = visit.page.frame_locator("iframe")
        frame.locator(".line.target .w", has_text="ont").click()
        assert frame.locator('.w[aria-pressed="true"]').inner_text() == "ont"
        frame.locator("#tab-heads").click()
        frame.locator("#view.heads").wait_for()


def test_a_long_text_is_shaded(chromium, filed):
    """Over 120 words: no ribbons; the words that a word looked at are shaded, the strongest is marked."""
    count = 150
    look = trace_examples.looks(1, count, count, seed=2)
    sides = {name: TraceSide(tuple(f"{name[0]}{at}" for at in range(count))) for name in ("source", "target")}
    trace = Trace(sides, (TracedAttention("decoder.0.cross", "target", "source", look, 0, "cross"),), "long")
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read")
        page.wait_for_selector(".shaded .w")
        assert page.locator('[role="tab"]').all_inner_texts()[-1] == "Map"
        page.locator(".shaded").nth(1).locator(".w").nth(7).hover()
        browser_visits.until(page, "() => document.querySelector('.w.most')")
        assert page.locator(".w.most").inner_text() == f"s{int(look.weights()[0, 7].argmax())}"


def test_a_sentence_of_forty_words_has_pairs_of_lines(chromium, filed):
    words = [f"word{at}." if at % 10 == 9 else f"word{at}" for at in range(40)]
    look = trace_examples.looks(1, 41, 41)
    cross = TracedAttention("decoder.0.cross", "target", "source", look, 0, "cross")
    trace = Trace({"source": reading_examples.side(words, "</s>"), "target": reading_examples.side(words, "</s>")},
                  (cross,), "forty")
    with browser_visits.visiting(chromium, filed(trace), size=SCREENS["desk"]) as visit:
        page = visit.open("read")
        page.wait_for_selector(".pair")
        script = "() => [...document.querySelectorAll('.line.target')].map((one) => one.lastChild.textContent)"
        ends = page.evaluate(script)
        assert ends == ["word9.", "word19.", "word29.", "word39."]
        for line in ("source", "target"):
            assert page.locator(f".line.{line} .w").all_inner_texts() == words
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def first_paint(chromium, address):
    """Milliseconds until the first words are on the screen; the browser reports them some time after it has drawn."""
    with browser_visits.visiting(chromium, address, offline=True) as visit:
        visit.open()
        script = "() => performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)[0]"
        return visit.page.wait_for_function(script).json_value()


def test_first_paint_is_quick(chromium, address):
    assert min(first_paint(chromium, address) for _ in range(3)) < 1000  # 230 ms alone
