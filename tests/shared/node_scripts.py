"""Running modules of the page in node, without a browser, to compare what they say with Python."""

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

ASSETS = Path(str(resources.files("regard.inspection.page").joinpath("assets")))
needed = pytest.mark.skipif(shutil.which("node") is None, reason="no node here, which runs the modules of the page")


def run(folder, modules, lines, **given):
    """What lines of JavaScript return; they see `given` and, by their names, modules of the page."""
    for path in ASSETS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    imports = "".join(f'import * as {name} from "./{name}.js";\n' for name in modules)
    (folder / "asked.js").write_text(
        f'import {{ readFileSync }} from "node:fs";\n{imports}const given = JSON.parse(readFileSync(0, "utf8"));\n'
        f"console.log(JSON.stringify(await (async () => {{ {lines} }})()));\n", encoding="utf-8")
    done = subprocess.run(["node", "asked.js"], cwd=folder, input=json.dumps(given), capture_output=True,
                          encoding="utf-8", check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
