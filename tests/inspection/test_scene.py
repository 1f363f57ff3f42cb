"""The scene from above: everything is in the page, and names of agents stay text."""

import json
import re
from dataclasses import replace

import browser_visits
import numpy as np
import pytest

from regard.inspection.scene.view import SceneView, looks_table, scene_html, scene_picture

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def view(name: str = "b", truth: bool = True) -> SceneView:
    rng = np.random.default_rng(0)
    past = rng.normal(size=(2, 4, 2))
    past[1, 0] = np.nan
    looks = np.full((2, 4, 2), 0.5)
    looks[0, -1] = [0.9, 0.1]
    looks[1, -1] = [0.3, 0.7]
    return SceneView("title " + name, ("a", name), past, rng.normal(size=(2, 3, 5, 2)), np.full((2, 3), 1 / 3), looks,
                     rng.normal(size=(2, 5, 2)) if truth else None, 7.0, 0.5)


def document(page: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" id="scene">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_the_page_has_all_numbers_and_needs_nothing_else() -> None:
    shown = view()
    page = scene_html(shown)
    found = document(page)
    assert found["past"][1][0] is None
    np.testing.assert_allclose(found["futures"], shown.futures, atol=1e-4)
    np.testing.assert_allclose(found["truth"], shown.truth, atol=1e-4)
    np.testing.assert_allclose(found["looks"], shown.looks, atol=1e-4)
    assert (found["frame"], found["step"]) == (7.0, 0.5)
    assert document(scene_html(view(truth=False)))["truth"] is None
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r'(src|href)=', page)
    assert 'id="time" type="range"' in page


def test_the_picture_has_room_for_what_is_probable() -> None:
    shown = view()
    chances = np.array([[0.5, 0.45, 0.05], [0.95, 0.04, 0.01]])
    shown = replace(shown, probabilities=chances, futures=shown.futures * np.array([1.0, 2.0, 100.0])[:, None, None])
    points = [*shown.past.reshape(-1, 2), *shown.truth.reshape(-1, 2)]
    for futures, some in zip(shown.futures, chances, strict=True):
        total = 0.0
        for future, chance in zip(futures, some, strict=True):
            if total < 0.9:
                points += [*future]
            total += chance
    low, high = document(scene_html(shown))["bounds"]
    seen = np.array([point for point in points if not np.isnan(point).any()])
    np.testing.assert_allclose([low, high], [seen.min(0), seen.max(0)], atol=1e-4)
    assert np.abs([low, high]).max() < 20


def test_hostile_names_are_inert() -> None:
    page = scene_html(view(HOSTILE))
    assert page.count("<script") == 2
    assert "<img" not in page
    assert document(page)["agents"] == ["a", HOSTILE]


def test_the_table_has_the_largest_weights_first() -> None:
    assert looks_table(view()) == [("b", "a", "0.300"), ("a", "b", "0.100")]


def test_the_picture_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    figure = scene_picture(view("$x$ \u05d0"))
    (axes,) = figure.axes
    assert len(axes.lines) == 2 * (3 + 1 + 1 + 1)


@pytest.mark.browser
def test_names_of_agents_do_not_cover_each_other(tmp_path) -> None:
    """Four agents that almost meet, on a desk and on a phone, where the names stay readable."""
    names = ("agent 1", "agent 2", "agent 3", "agent 4")
    past = np.random.default_rng(0).normal(size=(4, 4, 2)) * 20
    past[:, -1] = [[0.0, 0.0], [0.3, 0.0], [0.0, 4.0], [0.4, 4.2]]
    shown = SceneView("title", names, past, np.repeat(past[:, None, -1:], 3, 1), np.full((4, 3), 1 / 3),
                      np.full((4, 4, 4), 0.25), None, 7.0, 0.5)
    path = tmp_path / "scene.html"
    path.write_text(scene_html(shown))
    with browser_visits.browser() as chromium:
        for width in (1440, 390):
            page = chromium.new_page(viewport={"width": width, "height": 800})
            page.goto(path.as_uri())
            boxes = [one.bounding_box() for one in page.locator("svg text").all()]
            assert len(boxes) == 4
            assert min(box["height"] for box in boxes) >= 10
            for one in range(4):
                for other in range(one):
                    first, second = boxes[one], boxes[other]
                    across = min(first["x"] + first["width"], second["x"] + second["width"]) - max(first["x"],
                                                                                                  second["x"])
                    down = min(first["y"] + first["height"], second["y"] + second["height"]) - max(first["y"],
                                                                                                  second["y"])
                    assert across <= 2 or down <= 6
            page.close()


@pytest.mark.browser
def test_the_page_in_a_browser(tmp_path) -> None:
    path = tmp_path / "scene.html"
    path.write_text(scene_html(view(HOSTILE)))
    problems: list[str] = []
    with browser_visits.browser() as chromium:
        page = chromium.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        assert page.locator("circle").count() == 2
        assert page.locator("#weights tr").count() == 2
        page.locator("#time").fill("6")
        assert "predicted" in page.locator("#now").inner_text()
        page.locator("#agent").select_option("1")
        assert page.locator("#weights tr").count() == 1
        page.close()
    assert problems == []
