"""Files of tracks: where each agent is in each frame.

    read_tracks(paths)        scenes, one for each file, or for each value of a column `scene`

A row is a frame, an agent and a position. The columns are found by a header line, or named by the user
("frame,agent,x,y"); four columns without a header are read in this order, and ten numbers are read as MOTChallenge:
frame, id, left, top, width, height, confidence, x, y, z, where the position is (x, y), or the middle of the lower edge
of the box if these are -1. Values are separated by tabs, commas, semicolons or blanks. Rows may come in any order.

What is wrong is refused with file and line: a value that is no number, NaN, the same agent twice in a frame. This
module does not know windows or models.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.checks import nearest, plural, wrong
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, printable, read_lines

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
REQUIRED = ("frame", "agent", "x", "y")
OPTIONAL = ("scene", "kind")
NAMES = {
    "frame": ("frame", "frameid", "framenumber", "frameno", "t", "time", "timestamp", "timestep", "step"),
    "agent": ("agent", "agentid", "id", "track", "trackid", "object", "objectid", "ped", "pedid", "pedestrian",
              "pedestrianid", "person", "personid", "player", "playerid", "vehicle", "vehicleid", "animal", "animalid",
              "robot", "robotid"),
    "x": ("x", "posx", "px", "xm", "xcenter", "xpos", "worldx"),
    "y": ("y", "posy", "py", "ym", "ycenter", "ypos", "worldy"),
    "scene": ("scene", "sceneid", "recording", "recordingid", "sequence", "video", "clip", "match"),
    "kind": ("kind", "type", "class", "category", "agenttype", "objecttype"),
}
"""The names of columns that are understood, without case, blanks, dots and underscores."""
SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
MOT_COLUMNS = 10
MAX_TIME = 1e15
"""The largest number of a frame: up to here every multiple of a step is exact."""
OFF_GRID = 0.01
"""How far a frame may be from a multiple of the step, in steps."""


class Columns(NamedTuple):
    """Where the values of a row are, counted from 0; None for a column that is not there."""

    frame: int
    agent: int
    x: int
    y: int
    scene: int | None = None
    kind: int | None = None

    @property
    def least(self) -> int:
        """The least number of columns of a row."""
        return 1 + max(place for place in self if place is not None)


@dataclass(frozen=True)
class Scene:
    """The tracks of one recording. Rows are in order of frames, then of agents."""

    name: str
    """The file, and the value of the column `scene` if there is one."""
    frame: Floats
    """(R,): the frame of each row, as it is in the file."""
    agent: Ints
    """(R,): the number of the agent in `agents`."""
    position: Floats
    """(R, 2)"""
    line: Ints
    """(R,): the line of each row in its file."""
    file: str
    agents: tuple[str, ...]
    """The names of the agents, in the order in which they first occur in the file."""
    kinds: tuple[str, ...] | None = None
    """The kind of each agent; None without a column for it."""
    unsorted: Location | None = None
    """The first line of an agent whose frame is before that of its line before; None if there is none."""

    @property
    def frames(self) -> Floats:
        """The distinct frames, in order."""
        return np.unique(self.frame)

    def location(self, row: int) -> Location:
        """The file and line of a row."""
        return Location(self.file, int(self.line[row]))


@dataclass
class _Rows:
    """The rows of one scene while a file is read."""

    frame: list[float] = field(default_factory=list)
    agent: list[int] = field(default_factory=list)
    position: list[tuple[float, float]] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)


def read_tracks(paths: Sequence[str], columns: str | None = None, log: ReadLog | None = None) -> list[Scene]:
    """The scenes of these files.

    Args:
        columns: the names of the columns in the order of the file, separated by commas: "frame,agent,x,y"; a dash for
            a column that is not read. By default they are found by the header.
        log: receives notes about how files were read.
    """
    log = ReadLog() if log is None else log
    return [scene for path in paths for scene in _read_file(InputFile(path), columns, log)]


def looks_like_tracks(path: str) -> bool:
    """Whether the first line of a file is a header of tracks; False for what cannot be read, and for pipes."""
    try:
        file = InputFile(path)
        first = "" if file.single_pass else next((text for text in read_lines(file) if text.strip()), "")
        _find_columns(path, 1, _split(first, _separator(first)))
    except DataError:
        return False
    return True


def _read_file(file: InputFile, columns: str | None, log: ReadLog) -> list[Scene]:
    lines = ((number, text) for number, text in enumerate(read_lines(file), 1)
             if text.strip() and not text.startswith("#"))
    first = next(lines, None)
    if first is None:
        raise DataError(f"{file.name}: The file has no rows. Give lines with frame, agent, x and y.")
    separator = _separator(first[1])
    cells = _split(first[1], separator)
    given = None if columns is None else parse_columns(columns)
    header = any(not _is_number(cell) for cell in cells) and _is_header(cells, given)
    places = given or (_find_columns(file.name, first[0], cells) if header else _guess(file.name, first[0], cells, log))
    scenes: dict[str, _Rows] = {}
    for number, text in lines if header else _with_first(first, lines):
        _add_row(scenes, Location(file.name, number), _split(text, separator), places)
    if not scenes:
        raise DataError(f"{file.name}: There are no rows after the header. Give lines with frame, agent, x and y.")
    return [_finish(file.name, scene, rows) for scene, rows in scenes.items()]


def _with_first(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _separator(text: str) -> str | None:
    """The separator of a line; None for blanks."""
    return next((one for one in SEPARATORS if one in text), None)


def _split(text: str, separator: str | None) -> list[str]:
    return [cell.strip().strip('"') for cell in text.split(separator)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_header(cells: Sequence[str], given: Columns | None) -> bool:
    """Whether a first line with words in it is a header, and not a row whose agent, scene or kind has a name."""
    numbers = ("frame", "x", "y")
    if given is not None and given.least <= len(cells):
        return any(not _is_number(cells[getattr(given, name)]) for name in numbers)
    return True


def parse_columns(text: str) -> Columns:
    """The columns that a user names, "frame,agent,x,y"; a ValueError where they are wrong."""
    places: dict[str, int] = {}
    for place, cell in enumerate(text.split(",")):
        name = cell.strip().lower()
        if name in ("-", "_", ""):
            continue
        if name not in (*REQUIRED, *OPTIONAL):
            raise ValueError(f'--columns: "{printable(name)}" is no column of tracks. Use frame, agent, x, y, scene, '
                             f"kind, or - for a column to skip. {nearest(name, (*REQUIRED, *OPTIONAL))}".rstrip())
        if name in places:
            raise ValueError(f'--columns: "{name}" is named twice.')
        places[name] = place
    missing = [name for name in REQUIRED if name not in places]
    if missing:
        raise ValueError(f"--columns: {', '.join(missing)} missing. Name all of frame, agent, x and y, in the order of "
                         "the file.")
    return Columns(**places)


def _find_columns(name: str, line: int, cells: Sequence[str]) -> Columns:
    """The columns by the names of a header."""
    plain = [re.sub(r"[\s._\-]|\(.*\)|\[.*\]", "", cell.lower()) for cell in cells]
    places: dict[str, int] = {}
    for column, names in NAMES.items():
        found = [place for known in names for place, cell in enumerate(plain) if cell == known]
        if found:
            places[column] = found[0]
    missing = [column for column in REQUIRED if column not in places]
    if missing:
        header = ", ".join(f'"{printable(cell)}"' for cell in cells[:12])
        raise DataError(f"{name}:{line}: The header has no column for {', '.join(missing)}; its columns are {header}. "
                        "Name them with --columns, in the order of the file: --columns frame,agent,x,y.")
    return Columns(**places)


def _guess(name: str, line: int, cells: Sequence[str], log: ReadLog) -> Columns:
    """The columns of a file without a header."""
    if len(cells) == len(REQUIRED):
        log.note(f"{name} has no header; its four columns were read as frame, agent, x, y. Name them with --columns if "
                 "they are something else.")
        return Columns(0, 1, 2, 3)
    if len(cells) == MOT_COLUMNS:
        log.note(f"{name} has no header and ten columns, so it was read as MOTChallenge: frame, id, box, confidence, "
                 "position.")
        return MOT
    raise DataError(f"{name}:{line}: The file has no header and {plural(len(cells), 'column')}. Name them in the order "
                    "of the file, with - for a column to skip: --columns frame,agent,x,y.")


MOT = Columns(0, 1, 7, 8)
"""The columns of MOTChallenge, whose position may have to be computed: these, and no equal ones, mean that."""


def _add_row(scenes: dict[str, _Rows], where: Location, cells: Sequence[str], places: Columns) -> None:
    if len(cells) < places.least or (places is MOT and len(cells) != MOT_COLUMNS):
        raise DataError(f"{where}: This row has {plural(len(cells), 'column')}, but {places.least} are needed. "
                        "Complete it, or remove it.")
    frame = _number(where, "frame", cells[places.frame], MAX_TIME)
    if places is MOT:
        box = [_number(where, name, cells[place]) for name, place in (("left", 2), ("top", 3), ("width", 4),
                                                                       ("height", 5), ("x", 7), ("y", 8))]
        x, y = (box[4], box[5]) if (box[4], box[5]) != (-1.0, -1.0) else (box[0] + box[2] / 2, box[1] + box[3])
    else:
        x, y = (_number(where, name, cells[getattr(places, name)]) for name in ("x", "y"))
    agent = _agent_name(cells[places.agent])
    if not agent:
        raise DataError(f"{where}: The agent is missing. Give every row the number or the name of its agent.")
    rows = scenes.setdefault("" if places.scene is None else cells[places.scene], _Rows())
    number = rows.names.setdefault(agent, len(rows.names))
    if places.kind is not None:
        rows.kinds.setdefault(number, cells[places.kind])
    rows.frame.append(frame)
    rows.agent.append(number)
    rows.position.append((x, y))
    rows.line.append(where.line)


def _agent_name(cell: str) -> str:
    """The name of an agent; 3.0 is the same agent as 3."""
    return cell[:-2] if cell.endswith(".0") and cell[:-2].lstrip("-").isdigit() else cell


def _number(where: Location, name: str, cell: str, limit: float = math.inf) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f'{where}: {name} is "{printable(cell[:40])}", which is no number. Correct it, or remove the '
                        "row.") from None
    if not math.isfinite(value) or abs(value) > limit:
        raise DataError(f"{where}: {name} is {printable(cell[:40])}, which is no finite number. Correct it, or remove "
                        "the row.")
    return value


def _finish(name: str, scene: str, rows: _Rows) -> Scene:
    """The rows in order; the same agent twice in a frame is an error."""
    frame, agent, line = np.array(rows.frame), np.array(rows.agent, np.int64), np.array(rows.line, np.int64)
    by_agent = np.argsort(agent, kind="stable")
    back = np.flatnonzero((np.diff(agent[by_agent]) == 0) & (np.diff(frame[by_agent]) < 0))
    order = np.lexsort((line, agent, frame))
    frame, agent, line = frame[order], agent[order], line[order]
    twice = np.flatnonzero((np.diff(frame) == 0) & (np.diff(agent) == 0))
    agents = tuple(rows.names)
    if len(twice):
        row = int(twice[np.argmin(line[twice + 1])])
        raise DataError(f"{Location(name, int(line[row + 1]))}: Agent {printable(agents[agent[row]])} is in frame "
                        f"{frame[row]:g} twice; the first time in line {line[row]}. Remove one of the rows.")
    unsorted = None
    if len(back):
        unsorted = Location(name, int(np.array(rows.line)[by_agent[back + 1]].min()))
    kinds = tuple(rows.kinds.get(number, "") for number in range(len(agents))) if rows.kinds else None
    return Scene(f"{name} ({printable(scene)})" if scene else name, frame, agent, np.array(rows.position)[order], line,
                 name, agents, kinds, unsorted)


def frame_step(scene: Scene) -> float:
    """The most common difference between two consecutive frames of an agent; 1 if no agent has two."""
    order = np.lexsort((scene.frame, scene.agent))
    same = np.diff(scene.agent[order]) == 0
    steps = np.round(np.diff(scene.frame[order])[same], 9)
    if not len(steps):
        return 1.0
    values, counts = np.unique(steps, return_counts=True)
    return float(values[np.argmax(counts)])


class Grid(NamedTuple):
    """The tracks of a scene on a grid of time steps."""

    position: Floats
    """(steps, agents, 2); NaN where an agent is not there."""
    first: float
    """The frame of the first step."""
    step: float
    """The difference between two frames."""
    off_grid: Ints
    """The rows of the scene whose frame is between two steps, which are left out."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """(steps, agents): whether an agent is there."""
        return ~np.isnan(self.position[..., 0])


MAX_GRID = 1 << 28
"""Cells of a grid: more would be a frame number that is far from all others."""


def to_grid(scene: Scene, step: float | None = None) -> Grid:
    """The tracks with a row for each time step; `step` is the difference between two frames, by default the usual."""
    step = frame_step(scene) if step is None else step
    if not 0 < step < math.inf:
        raise wrong("frame_step", "above 0 and finite", f"{step:g}")
    first = float(scene.frame.min())
    place = (scene.frame - first) / step
    index = np.round(place)
    on = np.abs(place - index) <= OFF_GRID
    steps = int(index[on].max()) + 1
    if steps * len(scene.agents) > MAX_GRID:
        gaps = np.diff(scene.frames)
        worst = int(np.argmax(gaps))
        row = int(np.searchsorted(scene.frame, scene.frames[worst + 1]))
        raise DataError(f"{scene.location(row)}: Frame {scene.frame[row]:g} follows {scene.frames[worst]:g}, and with "
                        f"a step of {step:g} there would be {steps:,} steps of {plural(len(scene.agents), 'agent')}. "
                        "Correct the frame, or split the file.")
    position = np.full((steps, len(scene.agents), 2), np.nan)
    position[index[on].astype(np.int64), scene.agent[on]] = scene.position[on]
    return Grid(position, first, step, np.flatnonzero(~on))
