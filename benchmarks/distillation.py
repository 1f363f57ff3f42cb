"""Distillation measured: a student on Multi30k, English to French, beside its teacher: BLEU, and sentences per second.

    python benchmarks/distillation.py train DATA -o OUT --device cuda        both models; DATA: the folder of Multi30k
    python benchmarks/distillation.py train DATA -o OUT --student tiny="--recipe transformer-tiny"
    python benchmarks/distillation.py time DATA OUT/teacher OUT/student      on two cores

The teacher is the model of the plain command on all training pairs; the student learns from its translations. Scores
are those of test_2016_flickr with 5 beams. Several students, each with options of its own, are trained at a time.

Both sides of a ratio have the same sentences, beams, number type, engine and threads: the search of regard in float32,
and CTranslate2 with int8. The models take turns, and the medians are compared.
"""

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

# Before torch is imported: pages of 2 MiB, as on the command line, and room for the compiled products of all models,
# which take turns here: of 1,024 they would replace each other's, and be compiled again.
os.environ |= {"THP_MEM_ALLOC_ENABLE": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "20000"} | os.environ

import torch
from multi30k import run_all, save_results, score, sentences, shown, translate, write_lines
from timing import hardware, medians, table

from regard.tasks.ctranslate2_engine import open_ctranslate2
from regard.tasks.load import load

BEAMS, THREADS = 5, 2


def train(given: argparse.Namespace) -> None:
    """Train the teacher, then the students, and score all of them."""
    out, count = given.output, 100 if given.quick else None
    files = {f"{split}.{language}": write_lines(out / "data" / f"{split}.{language}",
                                                sentences(given.data, split, language)[:count])
             for language in ("en", "fr") for split in ("train", "val")}
    read = ["train", files["train.en"], files["train.fr"], "--validation", files["val.en"], "--validation",
            files["val.fr"], "--languages", "en-fr", "--device", given.device, "--seed", str(given.seed), "--yes"]
    read += ["--steps", "20", "--set", "training.validation.max_examples=50"] if given.quick else []
    read += ["--time", given.time] if given.time else []
    teacher = given.teacher or out / "teacher"
    seconds = {}
    if given.teacher is None:
        seconds |= run_all({"teacher": [*read, "-o", str(teacher)]}, out / "logs", 1)
    students = dict(each.partition("=")[::2] for each in given.student or ["student="])
    seconds |= run_all({name: [*read, "--teacher", str(teacher), "-o", str(out / name), *shlex.split(options)]
                        for name, options in students.items()}, out / "logs", given.jobs)
    sources, references = (sentences(given.data, "test_2016_flickr", language)[:count] for language in ("en", "fr"))
    found: dict[str, dict[str, Any]] = {}
    for name, folder in {"teacher": teacher, **{name: out / name for name in students}}.items():
        outputs = translate(folder, sources, given.device)
        write_lines(out / f"{name}.fr", outputs)
        parameters = sum(one.numel() for one in load(folder).model.parameters())
        found[name] = {**score(outputs, references, "fr"), "parameters": parameters, "seconds": seconds.get(name)}
    save_results(out / "results.json", {"machine": hardware(given.device), "results": found})
    print(hardware(given.device))
    base = found["teacher"]["bleu"]
    print(table(["model", "parameters", "tokenised BLEU", "sacreBLEU", "change", "chrF", "seconds"],
                [[name, f"{one['parameters']:,}", shown(one["tokenised"]), shown(one["bleu"]),
                  f"{one['bleu'] - base:+.2f}", shown(one["chrf"]), shown(one["seconds"])]
                 for name, one in found.items()]))


def measure(given: argparse.Namespace) -> None:
    """Time all models, and compare each with the first."""
    torch.set_num_threads(THREADS)
    texts = sentences(given.data, "test_2016_flickr", "en")[:given.sentences]
    machine, rows = hardware("cpu"), []
    # One engine after the other: CTranslate2 sets the threads of OpenMP, which torch uses too, to 1.
    engines = {"regard, float32": load,
               "CTranslate2, int8": lambda folder: open_ctranslate2(folder, quantization="int8", threads=THREADS)}
    for engine, open_model in engines.items():
        models = {str(folder): open_model(folder) for folder in given.models}
        works = {name: lambda model=model: model.translate(texts, beams=BEAMS) for name, model in models.items()}
        taken = medians(works, device="cpu", repeats=given.repeats)
        first = taken[str(given.models[0])]
        rows += [[engine, Path(name).name, f"{1000 * len(texts) / taken[name]:,.1f}", f"{first / taken[name]:.2f}"]
                 for name in models]
    print(machine)
    print(table(["engine", "model", "sentences/s", "times the first"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("train")
    part.set_defaults(run=train)
    part.add_argument("data", type=Path)
    part.add_argument("-o", "--output", type=Path, required=True)
    part.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    part.add_argument("--teacher", type=Path, help="a teacher that exists already")
    part.add_argument("--student", action="append", metavar="NAME=OPTIONS", help="repeat for several students")
    part.add_argument("--seed", type=int, default=1)
    part.add_argument("--jobs", type=int, default=4, help="students that are trained at a time")
    part.add_argument("--time", help="time limit of each training, such as 6m")
    part.add_argument("--quick", action="store_true", help="few pairs and steps, to see that it runs")
    part = parts.add_parser("time")
    part.set_defaults(run=measure)
    part.add_argument("data", type=Path)
    part.add_argument("models", type=Path, nargs="+", help="folders: the teacher, then students")
    part.add_argument("--sentences", type=int, default=200)
    part.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
