"""Questions of a page: read strictly, refused with a reason."""

import json

import pytest

from regard.inspection.page.server import WINDOW_FIELDS, RefusedRequestError, WhatIfRequest, parse_what_if, parse_window

ASKED = "&".join(f"{name}={place}" for place, name in enumerate(WINDOW_FIELDS))


def test_a_window():
    assert parse_window(ASKED) == {name: place for place, name in enumerate(WINDOW_FIELDS)}


@pytest.mark.parametrize("query", ["", "trace=0", ASKED + "&size=2", ASKED + "&more=1", ASKED.replace("=3", "=-3"),
                                   ASKED.replace("=3", "=3.0"), ASKED.replace("=3", "="), ASKED.replace("=3", "=٣"),
                                   ASKED.replace("=3", "=" + "9" * 10), ASKED.replace("=3", "=%00"), "&" * 99,
                                   ASKED.replace("size", "trace")])
def test_no_window(query):
    with pytest.raises(RefusedRequestError, match="whole numbers") as error:
        parse_window(query)
    assert error.value.status == 400


def test_what_if():
    assert parse_what_if(b'{"text": "Two dogs."}') == WhatIfRequest("Two dogs.", "", None, 0, 0)
    asked = {"text": "é<", "prefix": "Deux", "beams": 3, "choice": 2, "trace": 1}
    assert parse_what_if(json.dumps(asked).encode()) == WhatIfRequest(**asked)
    assert parse_what_if(b'{"text": "a", "prefix": null, "beams": null}') == WhatIfRequest("a")


@pytest.mark.parametrize(("body", "said"), [
    (b"", "JSON object"), (b"[]", "JSON object"), (b"{}", "with a text"), (b'{"text": null}', "with a text"),
    (b'{"text": 3}', "`text` must be text"), (b'{"text": "a", "more": 1}', "no other keys"),
    (b'{"text": "a", "beams": true}', "`beams` must be a whole number"), (b'{"text": "a", "beams": 2.0}', "`beams`"),
    (b'{"text": "a", "beams": 0}', "from 1 to 64"), (b'{"text": "a", "beams": 65}', "from 1 to 64"),
    (b'{"text": "a", "choice": -1}', "`choice`"), (b'{"text": "a", "trace": 2}', "`trace`"),
    (b'{"text": "\\ud800"}', "surrogate"), (b'{"text": "\xff"}', "UTF-8"), (b'{"text": "a", "beams": NaN}', "JSON"),
    (b'{"text": "' + b"a" * 20_001 + b'"}', "20,000 characters"), (b"[" * 100_000, "JSON object"),
    (b'{"text": ["a"]}', "`text`"),
])
def test_what_is_no_question(body, said):
    with pytest.raises(ValueError, match=r"must be|JSON") as error:
        parse_what_if(body)
    assert said in str(error.value)
