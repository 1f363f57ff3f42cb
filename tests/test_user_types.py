"""Types as a user's program sees them: mypy --strict accepts right programs and refuses wrong ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard

RIGHT = '''
"""A program that uses the library as its documentation shows."""

import torch

import regard


def watch_bleu(event: regard.CallbackEvent) -> None:
    if event.scores.get("bleu", 0.0) > 30.0 or event.step > 1000 or event.loss < 0.1:
        raise regard.StopTraining


pairs = [("Good day.", "Guten Tag.")]
translator = regard.train(pairs, "model", epochs=5, lr=1e-3, callbacks=[watch_bleu], validation="valid.tsv",
                          settings={"training.seed": 3})
text: str = translator("Good day.").text
texts: list[regard.Translation] = translator(["Good day.", "Yes."], beams=3, batch_tokens=1000)
one: regard.Translation = translator.translate("Good day.", beams=1)
scores: list[dict[str, object]] = translator.history
completer: regard.Completer = regard.train("corpus.txt", "model", task="language")
completion: regard.Completion = completer("Once", max_length=20)
filler: regard.Filler = regard.train(["a text"], "model", task="masked", source="text")
filled: str = filler("The ___ sleeps.").text
classifier: regard.Classifier = regard.train((pair for pair in pairs), "model", task="classify", resume=True)
label: str = classifier("Fine.")[0].name
labels: list[str] = [found[0].name for found in classifier(["Fine.", "Bad."])]

loaded = regard.load("model")
if isinstance(loaded, regard.Translator):
    loaded.translate("Good day.").alignment.pharaoh()
known: regard.Translator = regard.Translator.load("model", device="cpu")
with regard.watch(known) as records:
    known("Good day.")
trace: regard.Trace = records.trace()
entropy: torch.Tensor = records["decoder.0.cross"].entropy()

query = torch.randn(2, 4, 8)
output: torch.Tensor = regard.attend(query, query, query, mask=regard.Causal())
look = regard.Look(query, query)
largest: torch.Tensor = look.row_max().values
model: torch.nn.Module = regard.build("transformer-tiny", source_vocab_size=100, target_vocab_size=100)
'''
WRONG = {
    "translator: regard.Completer = regard.train('a', 'b')": "assignment",
    "regard.train('a', 'b').classify('x')": "attr-defined",
    "regard.train('a', 'b', callbacks=[len])": "list-item",
    "regard.train(5, 'b')": "call-overload",
    "regard.Translator.load('a')('x').txt": "attr-defined",
    "regard.Translator.load('a')(['x']).text": "attr-defined",
    "regard.tran('a')": "attr-defined",
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What mypy --strict says of the right program and of the wrong one: {(name, line): error}."""
    folder, root = tmp_path_factory.mktemp("programs"), Path(regard.__file__).parent.parent
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text("import regard\n" + "".join(f"{line}\n" for line in WRONG))
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    # A cache of its own: one that is shared with other options is thrown away each time.
    environment = {**os.environ, "MYPYPATH": str(root), "MYPY_CACHE_DIR": str(root.parent / ".mypy_cache" / "user")}
    done = subprocess.run([sys.executable, "-m", "mypy", "right.py", "wrong.py"], capture_output=True, text=True,
                          timeout=280, env=environment, cwd=folder)
    assert done.stderr == ""
    parts = [line.split(":", 2) for line in done.stdout.splitlines() if ": error:" in line]
    return {(name, int(number)): error for name, number, error in parts}


@pytest.mark.slow
def test_a_right_program_is_accepted(complaints):
    assert [error for error in complaints.items() if error[0][0] == "right.py"] == []


@pytest.mark.slow
def test_every_mistake_is_found(complaints):
    for number, (line, kind) in enumerate(WRONG.items(), 2):
        assert f"[{kind}]" in complaints.get(("wrong.py", number), ""), line
