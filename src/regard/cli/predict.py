"""`regard predict`: futures of agents from a file of their tracks.

A line of the result is an agent, a future, its probability and one of its points; with --json there is a line for each
agent.
"""

from typing import Annotated

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    OUTPUT_PANEL,
    ColumnsOption,
    DeviceOption,
    FrameOption,
    FrameStepOption,
    JsonOption,
    ModelArgument,
    open_task,
    with_examples,
)
from regard.cli.output import fail, write_json, write_line


@with_examples("""
    regard predict model live.csv                  # all futures of every agent
    regard predict model live.csv -k 1             # only the most probable one
    regard predict model live.csv --joint --json   # futures of the whole scene
    regard predict model live.csv --agent 7 --frame 120
""")
def predict(
    model: ModelArgument,
    tracks: Annotated[str, typer.Argument(
        metavar="TRACKS", show_default=False,
        help="File of tracks: frame, agent, x, y (CSV, TSV, MOTChallenge; plain or gzip; - for standard input).")],
    k: Annotated[int | None, typer.Option(
        "-k", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, show_default="all",
        help="Number of futures of each agent, the most probable first.")] = None,
    joint: Annotated[bool, typer.Option(
        "--joint", rich_help_panel=OUTPUT_PANEL,
        help="Futures of the whole scene: future 1 of all agents belongs together, and so on.")] = False,
    agent: Annotated[str | None, typer.Option(
        "--agent", metavar="NAME", rich_help_panel=DATA_PANEL, show_default="all",
        help="Print this agent only; its neighbours are still seen.")] = None,
    frame: FrameOption = None,
    columns: ColumnsOption = None,
    frame_step: FrameStepOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Predict where agents will be.

    Prints a line for each predicted point: agent, future, probability, frame, x and y, separated by tabs; with --json a
    line for each agent, with its futures and their probabilities. Every agent that is there in the last frame is
    predicted, also those that came late or were not seen in some frames.
    """
    from regard.data.tracks.reading import read_tracks, to_grid
    from regard.tasks.forecaster import Forecaster

    task = open_task(model, device, "Forecaster")
    assert isinstance(task, Forecaster)
    try:
        scenes = read_tracks([tracks], columns)
        if len(scenes) > 1:
            fail(f"{tracks}: The file has {len(scenes)} scenes. Give one scene at a time.")
        step = to_grid(scenes[0], frame_step).step
        window = task.scene_window(scenes[0], frame, frame_step)
        found = task.predict_window(window, k=k, joint=joint, agent=agent)
    except ValueError as error:
        fail(str(error))
    for one in found:
        if as_json:
            write_json({"agent": one.agent, "frame": window.frame, "step": step, "observed": one.observed,
                        "joint": joint, "probabilities": [round(value, 6) for value in one.probabilities.tolist()],
                        "futures": [[[round(value, 4) for value in point] for point in future]
                                    for future in one.futures.tolist()]})
            continue
        for number, (future, odds) in enumerate(zip(one.futures.tolist(), one.probabilities.tolist(), strict=True), 1):
            for later, (x, y) in enumerate(future, 1):
                write_line(f"{one.agent}\t{number}\t{odds:.4f}\t{window.frame + later * step:g}\t{x:.4f}\t{y:.4f}")
