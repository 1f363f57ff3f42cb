"""The page of two models: what it says, and that sentences are text."""

from pages import Reading

from regard.comparison.pages import SHOWN_SENTENCES, describe_difference, pair_page

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


def found(count=3, difference=2.0, p=0.01):
    one = {"first": 10.0, "second": 10.0 + difference, "difference": difference, "low": 0.5, "high": 3.0, "p": p}
    model = {"parameters": 1000, "bleu": 10.0, "chrf": 20.0, "loss": 1.5, "cut": 0,
             "signatures": {"bleu": "b", "chrf": "c"},
             "by_length": [{"least": 0, "most": 10, "pairs": 3, "bleu": 10.0, "chrf": 20.0}]}
    sentences = [{"number": number, "source": HOSTILE, "reference": "r", "first": "f", "second": f"s{number}",
                  "first_chrf": 10.0, "second_chrf": 10.0 + apart, "difference": apart}
                 for number, apart in enumerate([count - place - 0.5 for place in range(2 * count)])]
    return {"models": [{**model, "name": "old"}, {**model, "name": HOSTILE}], "pairs": 2 * count, "beams": 5,
            "draws": 1000, "regard": "0", "same": 1, "sentences": sentences, "difference": {"bleu": one, "chrf": one}}


def test_the_page_is_whole_and_nothing_in_it_is_obeyed():
    page = Reading(pair_page(found()))
    assert not {"script", "img", "link", "iframe"} & set(page.names)
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "alert(1)" in "".join(page.texts)
    assert {"s0", "s5"} <= set(page.texts)


def test_of_very_many_sentences_both_ends_are_shown_and_said():
    page = pair_page(found(count=SHOWN_SENTENCES + 20))
    assert f"{SHOWN_SENTENCES} of {SHOWN_SENTENCES + 20} sentences" in page
    assert page.count("alert(1)") < 2 * SHOWN_SENTENCES + 20


def test_chance_is_called_chance():
    assert "is better than" in describe_difference(found(), "bleu")
    assert "may well be chance" in describe_difference(found(p=0.4), "chrf")
    assert describe_difference(found(difference=-2.0), "bleu").startswith("old is better")
    assert "the same" in describe_difference(found(difference=0.0), "bleu")
