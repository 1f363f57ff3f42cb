"""A page as one file: it has all it needs in it, and nothing that anybody typed is markup."""

import json
import re

import traced

from regard.inspection.page.document import page_html

SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)


def test_one_file_has_everything():
    text = page_html([traced.translation()])
    document, script = SCRIPT.findall(text)
    assert json.loads(document)["title"] == "The black cat sleeps."
    assert "src=" not in re.sub(SCRIPT, "", text)
    assert "href=" not in re.sub(SCRIPT, "", text)
    assert len(script) > 10_000
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy  # a file asks nobody


def test_what_was_typed_is_no_markup():
    text = page_html([traced.hostile()])
    assert len(SCRIPT.findall(text)) == 2
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert "<title>&lt;script&gt;alert(&quot;title&quot;)&lt;/script&gt;</title>" in text


def test_the_same_traces_give_the_same_bytes():
    assert page_html([traced.translation()]) == page_html([traced.translation()])
