"""`regard compare`: several ways to do the same work, trained and tested alike; or two trained models on one test.

A folder with a config.toml is a model; anything else is data. What is compared, and how, is decided in
`regard.comparison`; here arguments are read and results are written. torch is imported inside the functions.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import compare_memory, models

Several = list[str] | None
FOLDER = "comparison"
"""Where a comparison goes when nobody says."""
BEAM = 5
"""Of the search, for models that are there already."""


def compare(
    given: Annotated[Several, typer.Argument(metavar="[MODEL MODEL] [DATA]...", help="Pairs to learn from (TSV, JSONL, "
                     "PO, TMX, or plain files in twos); without any, those of the embedded phrasebook. Or the folders "
                     "of two trained models, and pairs to test them on.", show_default=False)] = None,
    road: Annotated[bool, typer.Option("--road", help="Train every step of the road: one context vector, attention, "
                    "attention alone, convolution, Transformer.")] = False,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Train recurrence, convolution and "
                    "self-attention on a task of memory alone: copy, recall or adding. No data is read.",
                    show_default=False)] = None,
    ways: Annotated[str | None, typer.Option("--ways", metavar="NAME,...", help="With --task: rnn, lstm, gru, mut1, "
                    "mut2, mut3, convolution, attention.", show_default=False)] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", metavar="N,...", help="With --task: of sequences; with "
                       "--long up to 1024 where nothing is said.", show_default=False)] = None,
    long: Annotated[bool, typer.Option("--long", help="With --task: long sequences and trainings, for a GPU.")] = False,
    recipes: Annotated[str | None, typer.Option("--models", metavar="NAME,...", help="Train these recipes, with commas "
                       "between them, such as seq2seq,transformer-small.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FOLDER", help=f"Where models and results go; "
                      f"{FOLDER} where trainings are compared and nothing is said.", show_default=False)] = None,
    budget: Annotated[str | None, typer.Option(metavar="KIND:AMOUNT", help="What each training is given: tokens:2M, "
                      "minutes:3 or parameters:1M, or tokens and parameters with a comma between.",
                      show_default="as many tokens as `regard train` would take")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each model is trained.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small models and a small budget: minutes on a CPU.")] = False,
    test: Annotated[Several, typer.Option(metavar="FILE", help="Pairs to test on, once for each file. Some of DATA "
                    "where there are none.", show_default=False)] = None,
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Pairs to judge by while training, once for each "
                          "file. Some of DATA where there are none.", show_default=False)] = None,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the config of all "
                       "models, as for `regard train`; once for each.", show_default=False)] = None,
    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, help="Of the search by which models are "
                    "tested.", show_default=f"1 for trainings, {BEAM} for models")] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="The source's column (TSV, from 1), key (JSONL) "
                      "or language (TMX).", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="The target's column, key or language.",
                      show_default=False)] = None,
    format: Annotated[str | None, typer.Option(metavar="NAME", help="plain, tsv, jsonl, po or tmx, whatever the names "
                      "of the files say.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    device: models.Device = models.AUTO,
) -> None:
    """Compare ways to translate: trained on the same data with the same budget, or trained already.

    `regard compare DATA --road` trains each model, tests all on the same pairs, and tells scores with their spread over
    seeds, also by length, curves, parameters, speed, memory and gradient flow; FOLDER/page.html shows it in one file
    with what each model looks at, FOLDER/results.json holds it. Asked again for the same it goes on: what is finished
    is not done again. `regard compare MODEL MODEL DATA` compares two trained translators: scores, paired bootstrap, and
    sentences side by side. `regard compare --task copy` compares ways to remember. Exit code 1 means that a training
    failed, 2 that the call or the data was wrong, 130 that it was interrupted.
    """
    if task is not None:
        others = {"DATA": given, "--road": road, "--models": recipes, "--budget": budget, "--quick": quick,
                  "--test": test, "--validation": validation, "--set": changes, "--beam": beam, "--source": source,
                  "--target": target, "--format": format}
        _refuse(others, "a task of memory takes none: its sequences are made by chance")
        compare_memory.compare_memory(task, ways=ways, lengths=lengths, seeds=seeds, scale="long" if long else "quick",
                                      as_json=as_json, output=output, device=device)
        return
    _refuse({"--ways": ways, "--lengths": lengths, "--long": long}, "this goes with --task")
    folders = [path for path in given or () if is_model(path)]
    data = [path for path in given or () if not is_model(path)]
    reading = {"source": source, "target": target, "format": format}
    if folders:
        training = {"--road": road, "--models": recipes, "--budget": budget, "--quick": quick, "--test": test,
                    "--validation": validation, "--set": changes, "--seeds": seeds != 1}
        _trained(folders, data, output, beam or BEAM, device, as_json, reading,
                 [name for name, value in training.items() if value])
        return
    if road == (recipes is not None):
        models.fail("Say what to compare: --road for every step of it, --models NAME,... for some recipes, or the "
                    "folders of two trained models." if not road else "Give --road or --models, not both.")
    names = None if recipes is None else [name.strip() for name in recipes.split(",") if name.strip()]
    about = {"data": tuple(data), "validation": tuple(validation or ()), "test": tuple(test or ()), **reading}
    if not data and (about["validation"] or about["test"]):
        models.fail("--test and --validation go with DATA: the phrasebook has its own.")
    _trainings(names, about, {"seeds": seeds, "beams": beam or 1, "device": device}, quick, budget, changes or (),
               Path(output or FOLDER), as_json)


def _refuse(options: dict[str, Any], why: str) -> None:
    named = [name for name, value in options.items() if value]
    if named:
        models.fail(f"{', '.join(named)}: {why}.")


def is_model(path: str) -> bool:
    """Whether a path is the folder of a model."""
    return (Path(path) / "config.toml").is_file()


def _trainings(names: Sequence[str] | None, about: dict[str, Any], options: dict[str, Any], quick: bool,
               budget: str | None, changes: Sequence[str], folder: Path, as_json: bool) -> None:
    from regard.cli import compared
    from regard.cli.progress import progress
    from regard.comparison import place, report, runs
    from regard.comparison.budget import Budget
    from regard.comparison.road import ROAD, steps
    from regard.comparison.setting import Setting
    from regard.toml import document
    from regard.training.loop import TrainingError

    told = runs.Told(models.say, lambda: [compared.Brief(progress(sys.stderr))])
    try:
        options["changes"] = dict(document.assignment(text) for text in changes)
        options["budget"] = Budget() if budget is None else Budget.read(budget)
        make = Setting.quick if quick else Setting
        setting = make(steps(ROAD if names is None else names), **options)
        found = report.road(setting, report.Data(**about), folder, told)
    except runs.InterruptedTraining as error:
        models.fail(str(error), 130)
    except TrainingError as error:
        models.fail(str(error), 1)
    except ValueError as error:
        models.fail(str(error))
    except OSError as error:
        models.fail(f"{error.filename or folder}: {error.strerror}", 1)
    if as_json:
        models.write_json(found)
    else:
        compared.draw_road(found, sys.stdout)
        models.write(str(folder / place.PAGE))


def _trained(folders: Sequence[str], data: Sequence[str], output: str | None, beam: int, device: str, as_json: bool,
             reading: dict[str, Any], training: Sequence[str]) -> None:
    from regard.cli import compared
    from regard.comparison import pairwise, place
    from regard.comparison.pair_page import pair_page
    from regard.data.sources import opening

    if len(folders) != 2:
        models.fail(f"Two models are compared, but {len(folders)} {'is' if len(folders) == 1 else 'are'} given: "
                    f"{', '.join(folders)}.")
    if training:
        models.fail(f"{', '.join(training)}: This is for trainings, and trained models are given.")
    if not data:
        models.fail("Give pairs to test the models on, behind the two folders.")
    written = None if output is None else Path(output)
    if written is not None and written.exists() and (not written.is_dir() or any(written.iterdir())):
        models.fail(f"{output}: There is something already. Choose another folder.")
    try:
        pairs = [(pair.source, pair.target) for pair in opening.pairs(data, **reading)]
        tasks = [models.opened(folder, device, "Translator") for folder in folders]
        first, second = zip(_names(folders), tasks, strict=True)
        found = pairwise.compared(first, second, pairs, beams=beam)  # type: ignore[arg-type]
        if written is not None:
            written.mkdir(parents=True, exist_ok=True)
            kept = place.Place(written)
            kept.write(place.RESULTS, compared.dumps(found))
            kept.write(place.PAGE, pair_page(found))
    except ValueError as error:
        models.fail(str(error))
    except OSError as error:
        models.fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        models.write_json(found)
    else:
        compared.draw_pair(found, sys.stdout)
        if written is not None:
            models.write(str(written / place.PAGE))


def _names(folders: Sequence[str]) -> list[str]:
    """What the models are called: the names of their folders, or the paths where these are the same."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)
