"""Forecasting of tracks measured: ETH/UCY, leave one scene out, beside baselines and ablations; and its speed.

    python benchmarks/tracks.py DATA --device cuda --jobs 8 -o results.json
    python benchmarks/tracks.py DATA --scenes zara1 --seeds 1 --variants model --steps 1500
    python benchmarks/tracks.py --quick                                    synthetic tracks; shows only that it runs
    python benchmarks/tracks.py --speed                                    only the time of a forecast

DATA has the recordings as NAME.tsv.gz (test), NAME_train.tsv.gz and NAME_val.tsv.gz, with the columns frame, agent, x
and y: biwi_eth, biwi_hotel, students001, students003, crowds_zara01, crowds_zara02, and in parts only crowds_zara03 and
uni_examples. For each of the five test scenes a model is trained on the *_train files of all other recordings, by the
plain command, and its checkpoint is chosen on their *_val files; the test scene is read once, at the end. 8 steps are
observed, 12 predicted, 0.4 s each; agents that are there in all 20 steps count; scenes are averaged equally.

Variants: `model`; `one pair` (M all ones: without agent awareness); `alone` (neighbours masked). Trainings run as
parallel processes (`--jobs`). The baselines (constant velocity, k-means futures, linear regressions) are fitted to the
same training files, and are stored with every model.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from timing import hardware, medians, table

RECORDINGS = {"eth": ("biwi_eth",), "hotel": ("biwi_hotel",), "univ": ("students001", "students003"),
              "zara1": ("crowds_zara01",), "zara2": ("crowds_zara02",), "others": ("crowds_zara03", "uni_examples")}
"""The recordings of each scene; those of `others` are always in the training data."""
SCENES = tuple(scene for scene in RECORDINGS if scene != "others")
VARIANTS = {"model": (), "one pair": ("--set", "model.agent_aware=false"), "alone": ("--set", "model.neighbours=0")}
METRICS = ("ade", "fde", "jade", "jfde", "top_ade", "top_fde", "collisions")
GOALS = {"ade": 0.225, "fde": 0.375, "jade": 0.36, "jfde": 0.70}
"""Of the model, mean of five scenes, windows with at least one complete agent."""
SPEED_AGENTS, SPEED_GOAL = 64, 20.0
"""Agents of one forecast, and milliseconds."""
SOURCE_TREE = Path(__file__).resolve().parent.parent / "src"


def run(arguments: Sequence[str], log: Path) -> float:
    """Run a regard command with its output in a file; the seconds that it took."""
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE_TREE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    start = time.monotonic()
    with log.open("wb") as file:
        done = subprocess.run([sys.executable, "-m", "regard", *arguments], stdout=file, stderr=subprocess.STDOUT,
                              env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{log.name} failed: {log.read_text(errors='replace')[-2000:]}")
    return time.monotonic() - start


def files(data: Path, scenes: Sequence[str], part: str) -> list[str]:
    """The files of these scenes: "_train", "_val", or whole recordings."""
    return [str(data / f"{name}{part}.tsv.gz") for scene in scenes for name in RECORDINGS[scene]]


def train_and_test(data: Path, work: Path, scene: str, seed: int, variant: str, options: Sequence[str],
                   device: str) -> dict[str, Any]:
    """Train one model and evaluate it on its test scene."""
    name = f"{scene}-{seed}-{variant.replace(' ', '-')}"
    others = [one for one in RECORDINGS if one != scene]
    seconds = run(["train", *files(data, others, "_train"), "--task", "tracks", "-o", str(work / name), "--seed",
                   str(seed), *[word for path in files(data, others, "_val") for word in ("--validation", path)],
                   "--device", device, "--yes", *VARIANTS[variant], *options], work / f"{name}.train.log")
    run(["evaluate", str(work / name), *files(data, [scene], ""), "--device", device, "--json"],
        work / f"{name}.test.json")
    report = (work / f"{name}.test.json").read_text()
    found = json.loads(report[report.index("{"):])
    print(f"{name}: {seconds:.0f} s, minADE {found['agents>=1']['model']['ade']:.3f}, minFDE "
          f"{found['agents>=1']['model']['fde']:.3f}, JADE {found['agents>=1']['model']['jade']:.3f}, JFDE "
          f"{found['agents>=1']['model']['jfde']:.3f}", file=sys.stderr, flush=True)
    return {"scene": scene, "seed": seed, "variant": variant, "seconds": seconds, **found}


def mean(results: Sequence[dict[str, Any]], least: int, row: str, metric: str, scene: str) -> float:
    """The mean over seeds; row is a variant, or a baseline (of the variant `model`)."""
    variant = row if row in VARIANTS else "model"
    numbers = [one[f"agents>={least}"]["model" if row in VARIANTS else row][metric] for one in results
               if (one["scene"], one["variant"]) == (scene, variant)]
    return statistics.fmean(numbers)


def results_table(results: Sequence[dict[str, Any]], least: int, first: str, second: str) -> str:
    """A row for each variant and baseline, a column for each scene."""
    scenes = [scene for scene in SCENES if any(one["scene"] == scene for one in results)]
    variants = [name for name in VARIANTS if any(one["variant"] == name for one in results)]
    rows = []
    for row in [*(["constant velocity", "k-means", "linear"] if "model" in variants else []), *variants]:
        pairs = [(mean(results, least, row, first, scene), mean(results, least, row, second, scene))
                 for scene in scenes if row not in VARIANTS or any(
                     (one["scene"], one["variant"]) == (scene, row) for one in results)]
        means = tuple(statistics.fmean(column) for column in zip(*pairs, strict=True))
        rows.append([row, *(f"{a:.3f}/{b:.3f}" for a, b in [*pairs, means])])
    return table(["", *scenes, "mean"], rows)


def deviations(results: Sequence[dict[str, Any]], metric: str) -> str:
    """The mean over scenes of each seed, as text."""
    found = [[one["agents>=1"]["model"][metric] for one in results if one["seed"] == seed and one["variant"] == "model"]
             for seed in sorted({one["seed"] for one in results})]
    return ", ".join(f"{statistics.fmean(some):.4f}" for some in found if some)


def forecast_speed(threads: int) -> str:
    """The time of 20 futures for 64 agents, single and joint, by the base recipe."""
    import regard

    torch.set_num_threads(threads)
    forecaster = regard.task("tracks")
    past = torch.rand(SPEED_AGENTS, 1, 2) * 20 + (torch.rand(SPEED_AGENTS, 8, 2) - 0.5).cumsum(1)
    forecaster.predict(past)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        forecaster.predict(past)
        times.append(1000 * (time.perf_counter() - start))
    return (f"A forecast of 20 futures for {SPEED_AGENTS} agents on {threads} threads: {statistics.median(times):.1f} "
            f"ms (median of 20; goal: {SPEED_GOAL:g} ms)")


def attention_speed(threads: int) -> str:
    """Agent-aware attention against plain attention, 64 agents × 20 steps."""
    import regard

    torch.set_num_threads(threads)
    agents, rows = torch.arange(64 * 20) % 64, []
    for width, heads in ((64, 4), (128, 8)):
        x = torch.randn(1, 64 * 20, width)
        aware, plain = regard.AgentAwareAttention(width, heads=heads), regard.Attention(width, heads=heads)

        def backward(layer: torch.nn.Module, x: torch.Tensor = x, **options: torch.Tensor) -> None:
            layer(x, **options).sum().backward()

        with torch.no_grad():
            forward = medians({"plain": lambda: plain(x), "aware": lambda: aware(x, agents=agents)},  # noqa: B023
                              device="cpu", repeats=9)
        both = medians({"plain": lambda: backward(plain), "aware": lambda: backward(aware, agents=agents)},  # noqa: B023
                       device="cpu", repeats=9)
        for name, found in (("forward", forward), ("forward and backward", both)):
            rows.append([f"width {width}, {heads} heads, {name}", f"{found['plain']:.1f}", f"{found['aware']:.1f}",
                         f"{found['aware'] / found['plain']:.2f}"])
    return table(["64 agents × 20 steps", "plain, ms", "agent-aware, ms", "ratio"], rows)


def quick_data(folder: Path) -> None:
    """Synthetic recordings under the names of the real ones."""
    from regard.data.tracks.synthetic import simulate

    for number, name in enumerate(name for names in RECORDINGS.values() for name in names):
        for part in ("", "_train", "_val"):
            rows = simulate(steps=40, agents=5, seed=3 * number + len(part))
            text = "frame\tagent\tx\ty\n" + "".join(f"{r.frame}\t{r.agent}\t{r.x}\t{r.y}\n" for r in rows)
            (folder / f"{name}{part}.tsv.gz").write_bytes(gzip.compress(text.encode()))


def measure(data: Path, arguments: argparse.Namespace, options: Sequence[str]) -> list[dict[str, Any]]:
    """The results of all trainings; the longest first."""
    order = {"hotel": 0, "eth": 1, "zara1": 2, "zara2": 3, "univ": 4}
    tasks = sorted(((scene, seed, variant) for scene in arguments.scenes for seed in range(1, arguments.seeds + 1)
                    for variant in arguments.variants), key=lambda one: order[one[0]])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        work = Path(folder if arguments.keep is None else arguments.keep)
        work.mkdir(parents=True, exist_ok=True)
        return list(pool.map(lambda one: train_and_test(data, work, *one, options, arguments.device), tasks))


def report(results: Sequence[dict[str, Any]], wall: float, arguments: argparse.Namespace) -> None:
    """Print the tables."""
    for least in (1, 2):
        for first, second, title in (("ade", "fde", "minADE20/minFDE20"), ("jade", "jfde", "JADE20/JFDE20")):
            print(f"\n{title}, windows with at least {least} agent{'s' if least > 1 else ''}\n")
            print(results_table(results, least, first, second))
    if "model" in arguments.variants and set(arguments.scenes) == set(SCENES):
        goals = [f"{metric} {statistics.fmean(mean(results, 1, 'model', metric, scene) for scene in SCENES):.3f} "
                 f"(goal {goal:g}; by seed {deviations(results, metric)})" for metric, goal in GOALS.items()]
        print(f"\nGoals: {'; '.join(goals)}.")
        print("Most probable future, ADE/FDE: " + "/".join(
            f"{statistics.fmean(mean(results, 1, 'model', metric, scene) for scene in SCENES):.3f}"
            for metric in ("top_ade", "top_fde")) + "; collisions: " + ", ".join(
            f"{row} {100 * statistics.fmean(mean(results, 1, row, 'collisions', scene) for scene in SCENES):.1f} %"
            for row in ("model", "constant velocity", "k-means", "linear")) + ".")
    seconds = sum(one["seconds"] for one in results)
    print(f"\n{len(results)} trainings: {seconds:.0f} s of processes, {wall:.0f} s with {arguments.jobs} at a time.")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="keep the models in this folder")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    print(hardware(arguments.device))
    options = [word for change in arguments.changes for word in ("--set", change)]
    options += [] if arguments.steps is None else ["--steps", str(arguments.steps)]
    if arguments.data is None or arguments.speed:
        print(f"\n{attention_speed(2)}\n\n{forecast_speed(2)}")
    if arguments.speed or (arguments.data is None and not arguments.quick):
        if not arguments.speed:
            print("\nGive the folder of ETH/UCY to measure accuracy, or --quick.")
        return
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data
        if data is None:
            data, arguments.seeds, arguments.scenes = Path(folder), 1, ["eth", "univ"]
            quick_data(data)
            options = ["--steps", "3", "--recipe", "tracks-tiny"]
        start = time.monotonic()
        results = measure(data, arguments, options)
        wall = time.monotonic() - start
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"hardware": hardware(arguments.device), "seconds": wall,
                                                "results": results}, indent=1) + "\n")
    report(results, wall, arguments)


if __name__ == "__main__":
    main()
