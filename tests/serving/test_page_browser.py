"""The translator's page in Chromium, against a real server with a small trained model.

Requests go to the server, unless a test answers them itself to decide when and what: slow, failing, hostile.
"""

import json
import re
from contextlib import contextmanager

import browser_visits
import pytest
import toy_translation
from browser_visits import until
from served import ask

pytestmark = pytest.mark.browser
TRANSLATE = "**/api/v1/translate"
HOSTILE = '<script>window.hacked = 1</script> "><img src=x onerror="window.hacked = 2"> {{x}} &lt;b&gt; \u202e'


@pytest.fixture(scope="module")
def chromium():
    with browser_visits.browser() as found:
        yield found


@pytest.fixture(scope="module")
def address():
    from regard.serving.server import BackgroundServer

    with BackgroundServer(toy_translation.catalog(), max_characters=2000, max_batch=16,
                          max_file_size=100_000) as running:
        yield running.address


@contextmanager
def visited(chromium, address, *, source="en", path="/", **options):
    """The page, ready, with a source language; at its end nobody has complained and no other origin was asked."""
    with browser_visits.visiting(chromium, f"{address}{path}", **options) as visit:
        visit.page.goto(visit.address)
        visit.page.wait_for_selector("#translator:not([hidden])" if path == "/" else "#completer:not([hidden])")
        if source and path == "/":
            visit.page.select_option("#source", source)
        yield visit.page


def write(page, text):
    """Fill in a text, and wait for its whole translation, which is returned."""
    page.locator("#text").fill(text)
    return settled(page)


def settled(page):
    """The translation when nothing is under way any more."""
    page.wait_for_timeout(350)
    until(page, "() => document.querySelector('#result').ariaBusy === 'false'"
          " && document.querySelector('#result .sentence')")
    return "\n".join(page.locator("#result p").all_text_contents())


def expected(address, text, **fields):
    """What the server answers."""
    return ask(address, "/api/v1/translate", {"text": text, "source": "en", "target": "fr", **fields}).json[
        "translations"][0]


def fulfilled(route, *texts, **more):
    """Answer a request for translations with these texts."""
    tables = [{"text": text, "score": -1.0, "cut": False, "alternatives": [], **more} for text in texts]
    route.fulfill(json={"model": "one", "source": "en", "target": "fr", "translations": tables})


def texts_of(route):
    given = json.loads(route.request.post_data)["text"]
    return [given] if isinstance(given, str) else given


def test_typing_translates(chromium, address):
    with visited(chromium, address) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
        page.locator("#text").press_sequentially("the dog sleeps.", delay=5)
        assert settled(page) == expected(address, "the dog sleeps.")["text"]
        assert page.locator("#count").text_content() == "15 / 2,000"
        assert len(asked) <= 3  # and not one for each of the 15 letters


def test_lines_and_sentences_keep_their_places(chromium, address):
    with visited(chromium, address) as page:
        parts = ["The dog sleeps.", "A cat sees Mr. Smith.", "The cat sleeps."]
        first, second, third = (expected(address, part)["text"] for part in parts)
        assert write(page, f"{parts[0]} {parts[1]}\n\n{parts[2]}") == f"{first} {second}\n\n{third}"
        page.locator("#options summary").click()
        page.locator("#by-sentence").uncheck()
        whole = expected(address, f"{parts[0]} {parts[1]}")["text"]
        assert settled(page) == f"{whole}\n\n{third}"
        heights = page.evaluate("() => [...document.querySelectorAll('#result p')].map((one) => one.clientHeight)")
        assert heights[1] == heights[2] > 10  # an empty line is as high as any other


def test_what_is_known_is_not_asked_for_again(chromium, address):
    with visited(chromium, address) as page:
        write(page, "the dog sleeps.")
        seen = []
        page.route(TRANSLATE, lambda route: (seen.extend(texts_of(route)), route.continue_()))
        write(page, "the dog sleeps. The cat sleeps.")
        assert seen == ["The cat sleeps."]


def test_a_slow_answer_does_not_replace_a_newer_one(chromium, address):
    with visited(chromium, address) as page:
        held, failed = [], []
        page.on("requestfailed", lambda request: failed.append(json.loads(request.post_data)["text"]))
        page.route(TRANSLATE, lambda route: held.append(route) if texts_of(route) == ["slow"]
                   else fulfilled(route, "newer"))
        page.locator("#text").fill("slow")
        until(page, "() => document.querySelector('#result').ariaBusy === 'true'")
        page.wait_for_timeout(400)
        assert len(held) == 1
        assert write(page, "quick") == "newer"
        fulfilled(held[0], "older")
        page.wait_for_timeout(200)
        assert page.locator("#result").inner_text() == "newer"
        assert failed == [["slow"]]  # the page gave it up, so the server stops, too


def test_a_hostile_text_stays_a_text(chromium, address):
    with visited(chromium, address) as page:
        page.route(TRANSLATE, lambda route: fulfilled(
            route, *(HOSTILE for _ in texts_of(route)), alternatives=[{"text": f"{HOSTILE} {n}"} for n in range(3)]))
        assert write(page, HOSTILE) == HOSTILE
        page.locator("#alternatives").click()
        page.wait_for_selector(".alternative")
        assert page.locator(".alternative").first.text_content() == f"{HOSTILE} 0"
        page.locator(".alternative").nth(1).click()
        assert page.locator("#result").text_content() == f"{HOSTILE} 1"
        page.locator("#glossary summary").click()
        page.locator("#add-term").click()
        page.get_by_label("Term 1", exact=True).fill(HOSTILE)
        page.reload()
        page.wait_for_selector("#terms input", state="attached")
        assert page.get_by_label("Term 1", exact=True).input_value() == HOSTILE
        name = "<img src=x onerror='window.hacked = 3'>.txt"
        page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": b"dog"})
        page.wait_for_selector("#file-list a")
        assert page.locator(".file-name").text_content() == name
        assert page.evaluate("() => window.hacked") is None
        assert page.locator("main script, main img").count() == 0


def linked(page):
    """The words that are lit in the two panes, the one under the pointer or caret first."""
    return page.evaluate("""() => ['#mirror', '#result'].map((pane) =>
        [...document.querySelectorAll(pane + ' .on, ' + pane + ' .linked')].map((one) => one.textContent))""")


def test_a_word_lights_up_with_its_counterparts(chromium, address):
    text = "the black cat eats"
    table = expected(address, text, align=True)["alignment"]
    names = {side: [word["text"] for word in table[side]] for side in ("source", "target")}
    is_word = re.compile(r"\w")
    with visited(chromium, address) as page:
        write(page, text)
        for side, other, pane in (("target", "source", "#result"), ("source", "target", "#mirror")):
            words = [number for number, name in enumerate(names[side]) if is_word.search(name)]
            assert len(words) == 4
            for place, number in enumerate(words):
                box = page.locator(f"{pane} .word").nth(place).bounding_box()
                page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
                until(page, "([pane, place]) => document.querySelectorAll(pane + ' .word')[place]"
                      ".classList.contains('on')", [pane, place])
                links = sorted({link[other] for link in table["links"] if link[side] == number})
                lit = dict(zip(("source", "target"), linked(page), strict=True))
                assert lit[side] == [names[side][number]]
                assert lit[other] == [names[other][one] for one in links if is_word.search(names[other][one])]
        page.mouse.move(5, 5)
        page.locator("#text").press("Home")  # the caret, too
        until(page, "() => document.querySelector('#mirror .on')?.textContent === 'the'")


def test_characters_outside_the_basic_plane_are_counted_as_the_server_does(chromium, address):
    with visited(chromium, address) as page:
        page.route(TRANSLATE, lambda route: fulfilled(route, "😀 chien 😀 dort", alignment={
            "source": [{"text": "dog", "start": 2, "end": 5}, {"text": "sleeps", "start": 8, "end": 14}],
            "target": [{"text": "chien", "start": 2, "end": 7}, {"text": "dort", "start": 10, "end": 14}],
            "links": [{"source": 0, "target": 0, "weight": 1.0}, {"source": 1, "target": 1, "weight": 1.0}]}))
        write(page, "😀 dog 😀 sleeps")
        assert page.locator("#mirror .word").all_text_contents() == ["dog", "sleeps"]
        assert page.locator("#result .word").all_text_contents() == ["chien", "dort"]
        assert page.locator("#count").text_content() == "14 / 2,000"


def test_alternatives_of_a_word_and_of_a_sentence(chromium, address):
    text = "the black cat sleeps"
    with visited(chromium, address) as page:
        before = write(page, text)
        word = page.locator("#result .word").nth(1)
        start = before.index(word.text_content())
        prefix = before[:start].rstrip()
        best = expected(address, text, prefix=prefix, nbest=24, beams=24,
                        length_penalty="none")
        firsts, wanted = {before[len(prefix):].split()[0]}, []
        for one in [best, *best["alternatives"]]:
            rest = one["text"][len(prefix):].split()
            if one["text"].startswith(prefix) and rest and rest[0] not in firsts:
                firsts.add(rest[0])
                wanted.append(one["text"])
        word.click()
        page.wait_for_selector("#popover .alternative")
        until(page, "() => !document.querySelector('#popover').textContent.includes('Looking')")
        groups = page.locator("#popover section")
        assert len(wanted) >= 2
        assert groups.nth(0).locator(".alternative").all_text_contents() == wanted[:5]
        others = expected(address, text, nbest=8, beams=8, length_penalty=0.6)
        listed = [one["text"] for one in [others, *others["alternatives"]] if one["text"] != before][:5]
        assert groups.nth(1).locator(".alternative").all_text_contents() == listed
        groups.nth(1).locator(".alternative").first.click()
        assert page.locator("#popover").is_hidden()
        assert page.locator("#result").inner_text() == listed[0]
        page.locator("#text").fill(f"{text}\nthe dog")
        assert settled(page).split("\n")[0] == listed[0]  # the choice stays while the rest of the text changes


def test_a_glossary_is_used_and_kept(chromium, address):
    with visited(chromium, address) as page:
        free = write(page, "the dog sleeps")
        assert free == "le chien dort"
        page.locator("#glossary summary").click()
        page.locator("#add-term").click()
        page.get_by_label("Term 1", exact=True).fill("dog")
        page.get_by_label("Translation 1", exact=True).fill("chat")
        found = settled(page)
        assert found == expected(address, "the dog sleeps", glossary={"dog": "chat"})["text"]
        assert "chat" in found
        page.reload()
        page.wait_for_selector("#translator:not([hidden])")
        assert page.locator("#source").input_value() == "en"
        assert page.locator("#glossary-count").text_content() == "1"
        assert write(page, "the dog sleeps") == found
        page.locator("#glossary summary").click()
        page.get_by_label("Remove term 1").click()
        assert settled(page) == free


def test_choices_work_where_storage_is_denied(chromium, address):
    with browser_visits.visiting(chromium, f"{address}/") as visit:
        visit.page.add_init_script("Object.defineProperty(window, 'localStorage', "
                                   "{ get() { throw new DOMException('denied', 'SecurityError'); } });")
        visit.page.goto(visit.address)
        visit.page.select_option("#source", "en")
        visit.page.locator("#theme").click()
        assert visit.page.evaluate("() => document.documentElement.dataset.theme") == "dark"
        assert write(visit.page, "the dog") == expected(address, "the dog")["text"]


def test_the_language_is_detected_and_the_direction_turned(chromium, address):
    with visited(chromium, address, source="auto") as page:
        page.select_option("#target", "fr")
        write(page, "The black cat sees a small dog in the garden.")
        assert page.locator("#detected").text_content() == "English detected"
        write(page, "Le chat noir voit un petit chien dans le jardin de la maison.")
        assert page.locator("#detected").text_content() == "French detected"
        assert page.locator("#target").input_value() == "en"


def test_a_model_for_several_languages(chromium, address):
    """One source with two targets: nothing is detected, a language that is only a target is no source."""
    with browser_visits.visiting(chromium, f"{address}/") as visit:
        page, asked = visit.page, []
        page.route("**/languages", lambda route: route.fulfill(json=[
            {"code": "fr", "name": "French", "targets": []}, {"code": "en", "name": "English", "targets": ["fr", "de"]},
            {"code": "de", "name": "German", "targets": []}]))
        pairs = [{"source": "en", "target": code} for code in ("fr", "de")]
        page.route("**/api/v1/models", lambda route: route.fulfill(json=[
            {"name": "many", "task": "translation", "source": None, "target": None, "directions": pairs,
             "aligns": True}]))
        page.route(TRANSLATE, lambda route: (asked.append(json.loads(route.request.post_data)),
                                             fulfilled(route, *("Hund" for _ in texts_of(route)))))
        page.goto(visit.address)
        page.wait_for_selector("#translator:not([hidden])")
        assert page.locator("#source option").all_text_contents() == ["English"]
        assert page.locator("#target option").all_text_contents() == ["French", "German"]
        page.select_option("#target", "de")
        assert write(page, "dog") == "Hund"
        assert [(one["source"], one["target"], one["align"]) for one in asked] == [("en", "de", True)]
        assert page.locator("#model").text_content() == "Model many"
        assert page.locator("#look").is_enabled()
        assert page.locator("#swap").is_disabled()


def test_languages_are_swapped_with_the_texts(chromium, address):
    with visited(chromium, address) as page:
        found = write(page, "the dog")
        page.locator("#swap").click()
        assert (page.locator("#source").input_value(), page.locator("#target").input_value()) == ("fr", "en")
        assert page.locator("#text").input_value() == found


def test_files_are_chosen_or_dropped_and_downloaded(chromium, address):
    lines = ["the dog sleeps.", "the cat sleeps."]
    content = "".join(f"{line}\n" for line in lines)
    wanted = "".join(f"{expected(address, line)['text']}\n" for line in lines)
    with visited(chromium, address) as page:
        page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": content.encode()})
        page.evaluate("""(content) => {
            const files = new DataTransfer();
            files.items.add(new File([content], "b.txt"));
            for (const type of ["dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true }));
        }""", content)
        until(page, "() => document.querySelectorAll('#file-list a').length === 2")
        for number, name in enumerate(("a.fr.txt", "b.fr.txt")):
            with page.expect_download() as download:
                page.locator("#file-list li").nth(number).locator("a").click()
            assert download.value.suggested_filename == name
            assert download.value.path().read_text(encoding="utf-8") == wanted
        until(page, "() => !document.querySelector('#file-list a')")  # each can be taken once
        page.set_input_files("#file", {"name": "c.txt", "mimeType": "text/plain", "buffer": b"x" * 100_001})
        until(page, "() => document.querySelector('#file-list .wrong')?.textContent.includes('98 KiB')")


def test_the_translation_is_copied(chromium, address):
    with visited(chromium, address) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        found = write(page, "the dog sleeps.\nthe cat")
        page.locator("#copy").click()
        until(page, "() => document.querySelector('#copy').textContent === 'Copied'")
        assert page.evaluate("() => navigator.clipboard.readText()") == found


def active(page):
    return page.evaluate("() => document.activeElement.id || document.activeElement.className")


def test_everything_is_done_by_keys(chromium, address):
    with visited(chromium, address) as page:
        page.locator("#text").focus()
        page.keyboard.type("the black cat sleeps")
        settled(page)
        page.keyboard.press("Control+Enter")
        assert active(page) == "result"
        words = page.locator("#result .word").all_text_contents()
        page.keyboard.press("ArrowRight")
        assert page.locator("#result .on").text_content() == words[1]
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        page.wait_for_selector("#popover .alternative")
        until(page, "() => !document.querySelector('#popover').textContent.includes('Looking')")
        page.keyboard.press("ArrowDown")
        assert active(page) == "alternative"
        page.keyboard.press("Escape")
        assert active(page) == "result"
        page.keyboard.press("Enter")
        page.wait_for_selector("#popover .alternative")
        until(page, "() => !document.querySelector('#popover').textContent.includes('Looking')")
        page.keyboard.press("ArrowDown")
        wanted = page.evaluate("() => document.activeElement.textContent")
        page.keyboard.press("Enter")
        assert page.locator("#result").inner_text() == wanted
        page.keyboard.press("Escape")
        assert active(page) == "text"
        order = []
        for _ in range(8):
            page.keyboard.press("Tab")
            order.append(active(page))
        assert order[:5] == ["clear", "result", "copy", "alternatives", "look"]


@contextmanager
def failing(chromium, address):
    """As `visited`, where the console may tell of requests that failed, and of nothing else."""
    visit = browser_visits.Visit(chromium, f"{address}/")
    try:
        visit.page.goto(visit.address)
        visit.page.wait_for_selector("#translator:not([hidden])")
        visit.page.select_option("#source", "en")
        yield visit.page
        assert [one for one in visit.complaints if "Failed to load resource" not in one] == []
    finally:
        visit.close()


def test_a_busy_server_is_asked_again(chromium, address):
    with failing(chromium, address) as page:
        answers = []

        def answer(route):
            answers.append(route)
            if len(answers) == 1:
                route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": "The server is busy."})
            else:
                fulfilled(route, "at last")

        page.route(TRANSLATE, answer)
        page.locator("#text").fill("dog")
        until(page, "() => document.querySelector('#message').textContent.includes('1 s')")
        assert settled(page) == "at last"
        assert page.locator("#message").is_hidden()
        assert len(answers) == 2


def is_stale(page):
    """Whether what is shown is the translation of another text: pale, and not to be copied."""
    found = page.evaluate("""() => [document.querySelector('#result').classList.contains('stale'),
        ...['copy', 'alternatives', 'look'].map((id) => document.getElementById(id).disabled)]""")
    assert len({*found}) == 1, found
    return found[0]


@pytest.mark.parametrize(("status", "body", "words"), [
    (504, {"error": "The request took longer than the server allows."}, "shorter"),
    (400, {"error": f"Invalid: {HOSTILE}"}, HOSTILE),
    (502, "<html>bad gateway</html>", "502"),
    (None, None, "does not answer"),
])
def test_an_error_is_told(chromium, address, status, body, words):
    with failing(chromium, address) as page:
        write(page, "the cat sleeps")
        page.route(TRANSLATE, lambda route: route.abort() if status is None else route.fulfill(
            status=status, body=body if isinstance(body, str) else json.dumps(body)))
        page.locator("#text").fill("dog")
        page.wait_for_selector("#message:not([hidden])")
        assert words in page.locator("#message-text").text_content()
        assert is_stale(page)
        assert page.locator("#retry").is_visible() == (status != 400)
        page.unroute(TRANSLATE)
        if status != 400:
            page.locator("#retry").click()
            assert settled(page) == expected(address, "dog")["text"]
            assert page.locator("#message").is_hidden()
            assert not is_stale(page)


def test_offline_is_told_and_the_text_translated_when_online_again(chromium, address):
    with failing(chromium, address) as page:
        page.context.set_offline(True)
        page.locator("#text").fill("dog")
        until(page, "() => document.querySelector('#message-text').textContent.includes('offline')")
        page.context.set_offline(False)
        assert settled(page) == expected(address, "dog")["text"]


def test_a_text_that_is_too_long_is_not_sent(chromium, address):
    with visited(chromium, address) as page:
        asked = []
        page.route(TRANSLATE, lambda route: (asked.append(route), route.continue_()))
        page.locator("#text").fill("a" * 2001)
        page.wait_for_timeout(450)
        assert "2,000" in page.locator("#message-text").text_content()
        assert "wrong" in page.locator("#count").get_attribute("class")
        assert asked == []


def test_a_key_is_asked_for_only_where_it_is_needed(chromium, address):
    with visited(chromium, address) as page:
        assert page.locator("#key-form").is_hidden()
    visit = browser_visits.Visit(chromium, f"{address}/")
    page = visit.page
    given = []

    def answer(route):
        given.append(route.request.headers.get("authorization"))
        if given[-1] == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "An API key is needed."})

    page.route("**/api/v1/**", answer)
    page.goto(visit.address)
    page.wait_for_selector("#key-form:not([hidden])")
    for key in ("wrong", "right"):
        page.locator("#key").fill(key)
        page.locator("#key").press("Enter")
        page.wait_for_timeout(100)
    page.wait_for_selector("#translator:not([hidden])")
    assert page.locator("#key-form").is_hidden()
    page.select_option("#source", "en")
    assert write(page, "dog") == expected(address, "dog")["text"]
    assert given == [None, "Bearer wrong", *["Bearer right"] * (len(given) - 2)]
    assert page.evaluate("() => JSON.stringify(localStorage)").find("right") < 0  # kept only if that was asked for
    visit.close()


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_and_the_button(chromium, address, dark):
    paper = {False: "rgb(251, 250, 247)", True: "rgb(21, 23, 27)"}
    colour = "() => getComputedStyle(document.body).backgroundColor"
    with visited(chromium, address, dark=dark) as page:
        assert page.evaluate(colour) == paper[dark]
        page.locator("#theme").click()
        assert page.evaluate(colour) == paper[not dark]
        page.reload()
        page.wait_for_selector("#translator:not([hidden])")
        assert page.evaluate(colour) == paper[not dark]


def test_a_text_from_right_to_left(chromium, address):
    with visited(chromium, address) as page:
        page.route(TRANSLATE, lambda route: fulfilled(route, *("الكلب نائم" if "dog" in text else "Le chat"
                                                               for text in texts_of(route))))
        write(page, "the dog\nthe cat")
        assert page.evaluate("() => [...document.querySelectorAll('#result p')].map((one) => "
                             "getComputedStyle(one).direction)") == ["rtl", "ltr"]
        page.locator("#result").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowLeft")  # on, where the text runs to the left
        assert page.locator("#result .on").text_content() == "نائم"


def test_a_phone_does_not_scroll_sideways(chromium, address):
    with visited(chromium, address, size=(360, 640)) as page:
        wide = "() => document.documentElement.scrollWidth - innerWidth"
        page.route(TRANSLATE, lambda route: fulfilled(route, *("Donau" * 40 for _ in texts_of(route)),
                                                      alternatives=[{"text": "Elbe" * 50}]))
        write(page, "x" * 300)
        assert page.evaluate(wide) <= 0
        for panel in ("glossary", "files", "options"):
            page.locator(f"#{panel} summary").click()
        page.locator("#add-term").click()
        page.locator("#alternatives").click()
        page.wait_for_selector(".alternative")
        assert page.evaluate(wide) <= 0


def test_the_attention_of_a_sentence_opens_in_a_tab(chromium, address):
    with visited(chromium, address, dark=True) as page:
        write(page, "the black cat sleeps")
        with page.context.expect_page() as opened:
            page.locator("#look").click()
        tab = opened.value
        complaints = []
        tab.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        tab.wait_for_url(re.compile(rf"{re.escape(address)}/look/[\w-]+#.*theme=dark"))
        tab.wait_for_selector("#view")
        assert "the black cat sleeps" in tab.locator("h1").text_content()
        assert complaints == []


def test_a_text_is_completed_as_it_is_written(chromium, address):
    with visited(chromium, address, path="/?complete") as page:
        page.locator("#prompt").fill("The dog <b>")
        page.select_option("#length", "32")
        page.get_by_label("Temperature").fill("0")
        page.get_by_role("button", name="Continue the text").click()
        until(page, "() => document.querySelector('#completion .written')?.textContent")
        page.get_by_role("button", name="Continue the text").wait_for()
        wanted = ask(address, "/v1/completions", {"model": "writer", "prompt": "The dog <b>", "max_tokens": 32,
                                                  "temperature": 0}).json["choices"][0]["text"]
        assert page.locator("#completion .written").text_content() == wanted
        assert page.locator("#completion").text_content() == f"The dog <b>{wanted}"


def test_a_broken_stream_is_told(chromium, address):
    with visited(chromium, address, path="/?complete") as page:
        page.route("**/v1/completions", lambda route: route.fulfill(
            headers={"Content-Type": "text/event-stream"},
            body='data: {"choices": [{"text": "so far"}]}\n\ndata: {"error": {"message": "late", "code": 504}}\n\n'))
        page.locator("#prompt").fill("x")
        page.locator("#prompt").press("Control+Enter")
        page.wait_for_selector("#message:not([hidden])")
        assert page.locator("#completion .written").text_content() == "so far"


@pytest.mark.thorough
@pytest.mark.parametrize(("dark", "size"), [(False, (1200, 900)), (True, (1200, 900)), (False, (360, 640))])
def test_axe_finds_no_violation(chromium, address, dark, size):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")

    def check(page):
        page.wait_for_timeout(300)
        found = axe.Axe().run(page).response["violations"]
        assert [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]] == []

    with visited(chromium, address, dark=dark, size=size) as page:
        check(page)
        write(page, "the black cat sleeps")
        page.locator("#result .word").first.hover()
        for panel in ("glossary", "files", "options"):
            page.locator(f"#{panel} summary").click()
        page.locator("#add-term").click()
        page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"the dog"})
        page.wait_for_selector("#file-list a")
        check(page)
        page.locator("#result .word").first.click()
        until(page, "() => !document.querySelector('#popover').textContent.includes('Looking')")
        page.locator("#text").evaluate("(box) => { box.dispatchEvent(new Event('focus')); }")
        check(page)
    with visited(chromium, address, path="/?complete", dark=dark, size=size) as page:
        check(page)
