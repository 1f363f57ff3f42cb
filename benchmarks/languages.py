"""One model for several languages beside models of one direction, and zero-shot translation, on Multi30k.

    python benchmarks/languages.py --data multi30k --device cuda --jobs 4 --time 7m -o languages
    python benchmarks/languages.py --data multi30k --quick                two cores, minutes; the scores mean nothing

FOLDER has train, val and test_2016_flickr in English, German and French, one file a language (train.en.gz). Each model
is trained by `regard train` with no setting but those given here, and scored by `regard evaluate` (beam 5, sacreBLEU):

    en-de, en-fr    a model of one direction each
    six             one model for all six directions
    zero-shot       one model for en-de, de-en, en-fr and fr-en, which never saw a German sentence with its French one,
                    trained with --zero-shot

Trainings run side by side (--jobs). The table has BLEU and chrF for each direction; results.json has the rest.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from timing import hardware, table

DIRECTIONS = ("en-de", "en-fr", "de-en", "fr-en", "de-fr", "fr-de")
MODELS: Mapping[str, Sequence[str]] = {"en-de": ("en-de",), "en-fr": ("en-fr",), "six": ("en-de", "en-fr", "de-fr"),
                                       "zero-shot": ("en-de", "en-fr")}
"""The directions whose files are named; the models for several languages are trained both ways."""
TEST = "test_2016_flickr"
QUICK_PAIRS, QUICK_STEPS, QUICK_TESTED = 500, 20, 20


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="with train, val and test_2016_flickr in en, de and fr")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--jobs", type=int, default=1, help="trainings that run side by side")
    parser.add_argument("--time", help="limit of each training, such as 7m")
    parser.add_argument("--steps", type=int, help="of each training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every training")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} pairs and {QUICK_STEPS} steps")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="for the models and results.json; a temporary one")
    return parser.parse_args()


def corpus(data: Path, place: Path, quick: bool) -> Path:
    """The folder of the files; with `quick` a copy of their beginnings."""
    if not quick:
        return data
    for split, count in (("train", QUICK_PAIRS), ("val", QUICK_TESTED), (TEST, QUICK_TESTED)):
        for language in ("en", "de", "fr"):
            with gzip.open(data / f"{split}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
                lines = [next(file) for _ in range(count)]
            with gzip.open(place / f"{split}.{language}.gz", "wt", encoding="utf-8", newline="\n") as file:
                file.writelines(lines)
    return place


def files(folder: Path, split: str, direction: str) -> str:
    """The two files of a direction, as --direction has them."""
    return f"{direction}:" + ",".join(str(folder / f"{split}.{language}.gz") for language in direction.split("-"))


def regard(*words: str) -> str:
    """The output of a command of regard; its messages go to stderr."""
    return subprocess.run([sys.executable, "-m", "regard", *words], check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"}).stdout


def train(name: str, folder: Path, place: Path, asked: argparse.Namespace) -> Path:
    """Train one model, unless it is there."""
    model = place / name
    if (model / "model.safetensors").exists():
        return model
    words = ["train", "-o", str(model), "--device", asked.device, "--seed", str(asked.seed), "--quiet"]
    if len(MODELS[name]) > 1:
        words.append("--both-ways")
    if name == "zero-shot":
        words.append("--zero-shot")
    for direction in MODELS[name]:
        words += ["--direction", files(folder, "train", direction), "--validation", files(folder, "val", direction)]
    for option in ("time", "steps"):
        if (value := QUICK_STEPS if asked.quick and option == "steps" else getattr(asked, option)) is not None:
            words += [f"--{option}", str(value)]
    for change in asked.set:
        words += ["--set", change]
    regard(*words)
    return model


def score(name: str, folder: Path, place: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Train a model, and score it on every direction that it can translate."""
    model = train(name, folder, place, asked)
    tested = DIRECTIONS if len(MODELS[name]) > 1 else MODELS[name]
    words = [word for direction in tested for word in ("--direction", files(folder, TEST, direction))]
    found = json.loads(regard("evaluate", str(model), *words, "--device", asked.device, "--json"))
    about = json.loads(regard("info", str(model), "--json"))
    tables = found.get("directions", [found])
    kept = ("bleu", "chrf", "loss", "pairs", "bleu_signature", "chrf_signature")
    return {"model": name, "parameters": about["parameters"], "recipe": about["recipe"],
            "step": about["training"]["step"], "seconds": about["training"]["seconds"],
            "directions": {one["direction"]: {key: one[key] for key in kept} for one in tables}}


def report(results: Sequence[dict[str, Any]]) -> str:
    """A row for each direction, a column for each model; and the loss of the models for several languages."""
    singles = {name: score for one in results if len(MODELS[one["model"]]) == 1
               for name, score in one["directions"].items()}
    several = [one for one in results if len(MODELS[one["model"]]) > 1]
    rows = []
    for direction in DIRECTIONS:
        scores = [singles.get(direction), *(one["directions"].get(direction) for one in several)]
        cells = ["" if score is None else f"{score['bleu']:.2f} / {score['chrf']:.2f}" for score in scores]
        rows.append([direction, *cells])
    shown = [table(["direction", "one direction", *(one["model"] for one in several)], rows)]
    for one in several:
        both = [name for name in singles if name in one["directions"]]
        if both:
            losses = [singles[name]["bleu"] - one["directions"][name]["bleu"] for name in both]
            shown.append(f"{one['model']}: {sum(losses) / len(losses):.2f} BLEU less than the models of one direction, "
                         f"mean of {', '.join(both)}")
    about = [[one["model"], one["recipe"] or "", f"{one['parameters']:,}", f"{one['step']:,}", f"{one['seconds']:.0f}"]
             for one in results]
    return "\n\n".join(["BLEU / chrF", *shown, table(["model", "recipe", "parameters", "steps", "seconds"], about)])


def main() -> None:
    """Train, score and print."""
    asked = arguments()
    if asked.data is None:
        print("This benchmark needs data: --data FOLDER with train.en.gz and so on (Multi30k).")
        return
    names = asked.models.split(",")
    with tempfile.TemporaryDirectory(prefix="regard-languages-") as temporary:
        place = Path(asked.output or temporary)
        place.mkdir(parents=True, exist_ok=True)
        folder = corpus(Path(asked.data), Path(temporary), asked.quick)
        with ThreadPoolExecutor(asked.jobs) as pool:
            results = [*pool.map(lambda name: score(name, folder, place, asked), names)]
        (place / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        print(hardware(asked.device))
        print(f"python benchmarks/languages.py {' '.join(sys.argv[1:])}\n")
        print(report(results))


if __name__ == "__main__":
    main()
