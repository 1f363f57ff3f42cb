"""What is left out of scripts and styles changes nothing."""

import json
import shutil
import subprocess

import pytest

from regard.inspection.page import document
from regard.inspection.page import document as bundles

noded = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


@pytest.mark.parametrize(("given", "left"), [
    ("const a = [1, 2]; // two\n", "const a=[1,2];"),
    ("const a = 1 // one\n\n/** two */\nconst b = 2\n", "const a=1\nconst b=2\n"),
    ("a = b /* c */\nd = e\n", "a=b\nd=e\n"),
    ("a =\n  b +\n  c;\nd = (e) => // f\n  g;\n", "a=b+c;d=(e)=>g;"),
    ("a = b +\n  +c;\n", "a=b +\n+c;"),
    ("f(/* g */ /\\/\\/ h/, [/x/]);\n", "f(/\\/\\/ h/,[/x/]);"),
    ('const a = "b  =  c // d";\n', 'const a="b  =  c // d";'),
    ("const a = 'it  =  \\'s';\n", "const a='it  =  \\'s';"),
    ("const a = `b  =  ${ c  +  1 } // d`;\n", "const a=`b  =  ${ c  +  1 } // d`;"),
    ("a(`x ${b ? `y  =  ${c}` : \"\"}  z`, 1);\n", "a(`x ${b ? `y  =  ${c}` : \"\"}  z`,1);"),
    ("a = `b \\\n  =  c`;\n", "a=`b \\\n  =  c`;"),
    ("a = /x  =  [/\"] y/u.test(b);\n", "a=/x  =  [/\"] y/u.test(b);"),
    ("a = b / c / d;\n", "a=b / c / d;"),
    ("a + +b - -c + d - e\n", "a + +b - -c+d-e\n"),
    ("a = b\nc = d\n", "a=b\nc=d\n"),
    ("/** what\n * @param {A} b */\nif (a) {\n  return [b];\n}\nelse d();\n", "if(a){return[b];}else d();"),
])
def test_scripts_keep_what_counts(given, left):
    assert document.minify_script(given) == left


def test_styles_keep_what_counts():
    given = '/* a */\na:hover > b, c {\n  d: "e ; f", g;\n}\n@media (h: 1px) { i :focus { j: k } }\n'
    assert document.minify_style(given) == 'a:hover>b,c{d:"e ; f",g;}@media (h:1px){i :focus{j:k}}'


@noded
def test_the_page_still_has_the_same_names_and_texts():
    """Functions by their names and texts, before and after: what node reads of both is the same, spaces apart."""
    names = bundles._read_asset(bundles.ORDER_FILE).split()
    plain = '"use strict";\n' + "".join(bundles._concatenate({name: bundles._read_asset(name) for name in names}))
    script = bundles.load_bundle().script
    assert len(script) < 0.75 * len(plain)
    program = """
    const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
    globalThis.document = { getElementById: () => null };
    const bare = (text) => text.replace(/\\/\\*\\*[^]*?\\*\\//g, "").replace(/(^|\\s)\\/\\/ .*$/gm, "");
    const words = (text) => [...bare(text).matchAll(/[\\w$]+|"[^"\\n]*"|`[^`]*`/g)].map(String).join(" ");
    const answer = given.map((script) => { new Function(script)(); return words(script); });
    console.log(answer[0] === answer[1], answer[0].length);
    """
    done = subprocess.run(["node", "-e", program], input=json.dumps([plain, script]), text=True,
                          capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    same, count = done.stdout.split()
    assert same == "true"
    assert int(count) > 10_000
