"""What the benchmarks on Multi30k share: its sentences, trainings as processes of their own, and scores.

    sentences(folder, "train", "en")              lines of train.en.gz
    run_all({"name": ["train", ...]}, jobs=2)     regard commands, some at a time; their output in a log file each
    score(hypotheses, references, "de")           lower-cased tokenised BLEU, sacreBLEU and chrF

Lower-cased tokenised BLEU is that of the Multi30k papers: punctuation normalised and tokenised as Moses does. It needs
sacremoses, and is None without it; hypotheses are written to files, so it can be computed elsewhere.
"""

import gzip
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sacrebleu

SOURCE_TREE = Path(__file__).resolve().parent.parent / "src"


def sentences(folder: Path, split: str, language: str) -> list[str]:
    """The lines of one file, such as train.en.gz."""
    with gzip.open(folder / f"{split}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
        return file.read().removesuffix("\n").split("\n")


def write_lines(path: Path, lines: Sequence[str]) -> str:
    """Write a plain file, and return its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)


def run_all(commands: Mapping[str, Sequence[str]], logs: Path, jobs: int) -> dict[str, float]:
    """Run regard commands, at most `jobs` at a time, and return the seconds of each; the first that fails ends all."""
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE_TREE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def run(name: str) -> float:
        start, log = time.monotonic(), logs / f"{name}.log"
        with log.open("wb") as file:
            done = subprocess.run([sys.executable, "-m", "regard", *commands[name]], stdout=file, stderr=file,
                                  env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed with code {done.returncode}: {log.read_text(errors='replace')[-2000:]}")
        seconds = time.monotonic() - start
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        return seconds

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(commands, pool.map(run, commands), strict=True))


def score(hypotheses: Sequence[str], references: Sequence[str], language: str) -> dict[str, float | None]:
    """The scores of translations."""
    return {"tokenised": _tokenised_bleu(hypotheses, references, language),
            "bleu": sacrebleu.corpus_bleu(hypotheses, [references]).score,
            "chrf": sacrebleu.corpus_chrf(hypotheses, [references]).score}


def _tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float | None:
    if importlib.util.find_spec("sacremoses") is None:
        return None
    moses = importlib.import_module("sacremoses")
    tokenizer, normalizer = moses.MosesTokenizer(language), moses.MosesPunctNormalizer(language)

    def prepared(texts: Sequence[str]) -> list[str]:
        return [tokenizer.tokenize(normalizer.normalize(text.lower().strip()), return_str=True, escape=False)
                for text in texts]

    return sacrebleu.corpus_bleu(prepared(hypotheses), [prepared(references)], tokenize="none", force=True).score


def translate(model: Path, texts: Sequence[str], device: str) -> list[str]:
    """Translations by beam search with 5 beams."""
    load = importlib.import_module("regard.tasks.load").load
    return [one.text for one in load(model, device=device).translate(list(texts), beams=5)]


def save_results(path: Path, results: object) -> None:
    """Write the results as JSON."""
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def shown(value: float | None) -> str:
    """A score with two digits, or a dash."""
    return "-" if value is None else f"{value:.2f}"
