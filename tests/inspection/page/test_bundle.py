"""The parts of the page: found in the package, joined in one way only, and closed to everything else."""

import base64
import hashlib
import re

import pytest

from regard.inspection.page import document as bundles

SKELETON = "<title>{{title}}</title><meta {{policy}}><style>{{style}}</style><x>{{page}}</x><script>{{script}}</script>"
MODULES = {"a.js": "// A\nexport const one = 1;\nexport function two() {\n  return one;\n}\n",
           "b.js": 'import {\n  one,\n  two,\n} from "./a.js";\n\nclass Three {}\nexport async function four() {}\n'}


def made(**changes):
    return bundles.make_bundle(SKELETON, changes.pop("style", "a { b: c }"), MODULES | changes.pop("modules", {}))


def test_modules_become_one_script():
    assert made().script == ('"use strict";const one=1;function two(){return one;}class Three{}'
                             "async function four(){}")


@pytest.mark.parametrize(("name", "text", "said"), [
    ("c.js", "const one = 2;\n", "one is declared in a.js and in c.js"),
    ("c.js", 'import { one } from "./d.js";\n', "d.js, which must stand before"),
    ("c.js", 'import { six } from "./a.js";\n', "six"),
    ("c.js", 'import { Three } from "./b.js";\n', "Three"),
    ("c.js", 'import * as all from "./a.js";\n', "import"),
    ("c.js", 'import { one as uno } from "./a.js";\n', "one as uno"),
    ("c.js", "export default 3;\n", "export default"),
    ("c.js", "export { five };\n", "export"),
    ("c.js", 'const text = "</SCRIPT>";\n', "must not end the script"),
    ("c.js", 'const text = "<!--";\n', "comment of HTML"),
])
def test_what_cannot_be_joined_is_found(name, text, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        made(modules={name: text})


def test_a_style_cannot_end_itself():
    with pytest.raises(AssertionError, match="end itself"):
        made(style="</style><script>")


def test_a_skeleton_has_every_place_once():
    with pytest.raises(AssertionError, match="once"):
        bundles.make_bundle(SKELETON.replace("{{page}}", ""), "", MODULES)


def test_the_policy_knows_script_and_style_by_their_hashes():
    parts = made()
    script, style = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                     for text in (parts.script, parts.style))
    assert parts.policy() == (f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
                              "base-uri 'none'; form-action 'none'")
    assert parts.policy("connect-src 'self'").endswith("; connect-src 'self'")
    assert "unsafe" not in parts.policy()


def test_titles_are_escaped_and_nothing_is_put_in_twice():
    page = made(style="{{script}}").page('</title><script>"', '{"a":"{{script}}"}', "p")
    assert "<title>&lt;/title&gt;&lt;script&gt;&quot;</title>" in page
    assert page.count("const one") == 1
    assert '{"a":"{{script}}"}' in page
    with pytest.raises(AssertionError):
        made().page("", '"</script>"', "")


def test_a_page_without_a_title_has_one():
    assert "<title>regard</title>" in made().page("", "{}", "")


def test_the_package_has_the_parts():
    parts = bundles.load_bundle()
    assert len(parts.style) + len(parts.script) + len(parts.skeleton) < 100_000
    assert "innerHTML" not in parts.script
    assert not re.search(r"https?://(?!www\.w3\.org/)", parts.script + parts.style)  # only names of namespaces
    assert bundles.load_bundle() is parts
