"""Back-translation measured: what 24,000 German sentences without their English add to 5,000 pairs of Multi30k.

    python benchmarks/backtranslation.py DATA -o OUT --device cuda --jobs 6      DATA: the folder of Multi30k
    python benchmarks/backtranslation.py DATA -o OUT --quick                     whether it runs; scores mean nothing
    python benchmarks/backtranslation.py DATA -o OUT --options "--temperature 1 --top-k 50"

For every seed two models are trained, each by one command: on 5,000 pairs of the training data, drawn at random once,
and on the same pairs with `--monolingual` and the German side of all others. Both have the same validation data. The
test set is test_2016_flickr, translated with 5 beams: lower-cased tokenised BLEU as in the Multi30k papers, sacreBLEU
and chrF. OUT has the hypotheses (*.de) and results.json.
"""

import argparse
import random
import shlex
import statistics
from pathlib import Path

import torch
from multi30k import run_all, save_results, score, sentences, shown, translate, write_lines
from timing import hardware, table

ALONE, BACK = "pairs alone", "with back-translation"
PAIRS, QUICK_PAIRS, QUICK_SENTENCES = 5000, 300, 100
DRAW = 1
"""The seed of the draw, which is the same for all trainings."""


def commands(data: Path, out: Path, given: argparse.Namespace) -> dict[str, list[str]]:
    """The trainings by name, and the files that they read."""
    pairs = QUICK_PAIRS if given.quick else given.pairs
    end = pairs + QUICK_SENTENCES if given.quick else None
    train = {language: sentences(data, "train", language) for language in ("en", "de")}
    order = random.Random(DRAW).sample(range(len(train["de"])), len(train["de"]))
    files = {f"{split}.{language}": write_lines(out / "data" / f"{split}.{language}", lines)
             for language in ("en", "de") for split, lines in (
                 ("pairs", [train[language][number] for number in order[:pairs]]),
                 ("val", sentences(data, "val", language)))}
    text = write_lines(out / "data" / "monolingual.de", [train["de"][number] for number in order[pairs:end]])
    common = ["--device", given.device, "--yes", "--languages", "en-de", *shlex.split(given.all_options)]
    common += ["--steps", "20", "--set", "training.validation.max_examples=50"] if given.quick else []
    common += ["--time", given.time] if given.time else []
    found = {}
    for seed in given.seeds:
        read = ["train", files["pairs.en"], files["pairs.de"], "--validation", files["val.en"], "--validation",
                files["val.de"], "--seed", str(seed), *common]
        if not given.back_only:
            found[f"alone-{seed}"] = [*read, "-o", str(out / f"alone-{seed}")]
        found[f"back-{seed}"] = [*read, "--monolingual", text, *shlex.split(given.options), "-o",
                                 str(out / f"back-{seed}")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--time", help="time limit of each training, such as 6m")
    parser.add_argument("--options", default="", help="further options of the trainings with back-translation")
    parser.add_argument("--all-options", default="", help="further options of all trainings")
    parser.add_argument("--back-only", action="store_true", help="leave out the trainings on the pairs alone")
    parser.add_argument("--quick", action="store_true", help="few pairs and steps, to see that it runs")
    given = parser.parse_args()
    trainings = commands(given.data, given.output, given)
    seconds = run_all(trainings, given.output / "logs", given.jobs)
    sources, references = (sentences(given.data, "test_2016_flickr", language) for language in ("en", "de"))
    if given.quick:
        sources, references = sources[:50], references[:50]
    found = {}
    for name in trainings:
        outputs = translate(given.output / name, sources, given.device)
        write_lines(given.output / f"{name}.de", outputs)
        found[name] = {**score(outputs, references, "de"), "seconds": seconds[name]}
    save_results(given.output / "results.json", {"machine": hardware(given.device), "options": vars(given) | {
        "data": str(given.data), "output": str(given.output)}, "results": found})
    print(hardware(given.device))
    rows = []
    for kind, begin in ((ALONE, "alone"), (BACK, "back")):
        some = [one for name, one in found.items() if name.startswith(f"{begin}-")]
        if not some:
            continue
        cells = []
        for key in ("tokenised", "bleu", "chrf"):
            values = [one[key] for one in some if one[key] is not None]
            cells.append(" ".join([*map(shown, values), f"mean {shown(statistics.mean(values) if values else None)}"]))
        rows.append([kind, *cells, f"{max(one['seconds'] for one in some):.0f}"])
    print(table(["training", "tokenised BLEU", "sacreBLEU", "chrF", "longest, s"], rows))


if __name__ == "__main__":
    main()
