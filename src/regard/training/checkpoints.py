"""The checkpoints of a training: the last ones and the best, each whole, in a folder of their own.

    step-00001000/     state.safetensors, or a file of each process that holds a part of it
                       values.json: the rest of the state, the step, and which step was the best by then
                       manifest.json: the length and the sha256 of the others
    newest.json        which step was stored last, and which was the best; written last
    lock               held by the training that writes here

A save is seen by nobody before it is whole, so a killed one, or a full disk, leaves what was there. With every
checkpoint that is kept the best of its time is kept too: whichever is resumed, the best that it knows of is there.

It knows folders and steps. It does not know what the state is of, nor when it is worth storing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import checks
from regard._version import __version__
from regard.storage import folder as folders
from regard.storage import manifest as manifests
from regard.storage import system
from regard.storage.folder import FolderError, Saved
from regard.storage.manifest import wrong
from regard.training import holding, removal, shards
from regard.training.removal import folder_of
from regard.training.shards import Part, Stored, part_of
from regard.training.snapshot import Snapshot

FORMAT = 1
VALUES, POINTER = "values.json", "newest.json"


class NewerError(FolderError):
    """A checkpoint was written by a newer regard than this one."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was found whole."""

    step: int
    best: int | None
    """The step that was the best by then."""
    snapshot: Stored
    """Read what is needed before the next checkpoint is saved, which may remove this one."""
    notes: tuple[str, ...] = ()
    """Why newer ones were passed over."""


class Checkpoints:
    """The checkpoints in a folder, of which the last `keep` stay, and the best."""

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise checks.wrong("keep", "a whole number, at least 1", repr(keep))
        self.folder, self.keep = Path(folder), keep

    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, whole or not, in order."""
        return sorted(removal.found(self.folder))

    def hold(self) -> AbstractContextManager[None]:
        """Keep other trainings out of this folder, which is made where it is not there; see `holding.held`."""
        return holding.held(self.folder)

    def save(self, step: int, snapshot: Snapshot, best: int | None = None, *, rank: int = 0, processes: int = 1,
             barrier: Callable[[], None] = lambda: None) -> list[str]:
        """Store the state after this step, and remove what need not stay. Returns what went wrong with the removal.

        Of several processes all must call it. Each writes the parts that it holds; what is not a part is the same on
        all, and the first (rank 0) writes it. `barrier` waits until all have come to it. If it fails anywhere, all get
        through the barriers, and there is no new checkpoint.

        Args:
            best: the step that is the best by now; its checkpoint is not removed.
        """
        _check_steps(step, best)
        values = _encoded(step, best, snapshot.values)
        tensors = {name: part_of(tensor) if not isinstance(tensor, Part) else tensor
                   for name, tensor in snapshot.tensors.items()}
        parted = any(isinstance(tensor, Part) for tensor in tensors.values())
        files = _files(processes if parted else 1)
        own = {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, Part)}
        target, place = self.folder / folder_of(step), self.folder / removal.ASIDE
        notes: list[str] = []
        with _then(barrier), ExitStack() as undo:               # nobody goes on before it is done
            with _then(barrier):                                # nor makes a folder of files that are not all there
                with _then(barrier), system.told(target):       # nor writes where there is no place yet
                    if rank == 0:
                        self.folder.mkdir(exist_ok=True)
                        notes += removal.tidied(self.folder)
                        undo.callback(shutil.rmtree, place, ignore_errors=True)
                        place.mkdir()
                if rank < len(files):
                    with system.told(target):
                        shards.write(place / files[rank], own)
            if rank == 0:
                notes += self._put(step, [place / file for file in files], values)
                with system.told(target):
                    self._point(step, best)
                    notes += self._thinned(step)
        return notes

    def load(self) -> Loaded | None:
        """The newest whole checkpoint; None where there never was one, a FolderError where none is whole.

        Every byte of it is read and compared. Of several processes one does this, and tells the others the step.
        """
        steps, refused = self.steps()[::-1], list[str]()
        named = self._named()
        if isinstance(named, str):
            refused.append(named)
        elif named is not None and named not in steps:
            refused.append(f"{self.folder / POINTER} names {folder_of(named)}, which is not there.")
        for step in steps:
            try:
                self._refuse_newer(step)
                loaded = folders.load(self.folder / folder_of(step), partial(_loaded, step))
            except NewerError:
                raise
            except ValueError as error:
                refused.append(str(error))
            else:
                used = f"The checkpoint {folder_of(step)} is used instead."
                return Loaded(loaded.step, loaded.best, loaded.snapshot, tuple(f"{why} {used}" for why in refused))
        if refused:
            raise wrong(self.folder, "a folder with a whole checkpoint", "one without",
                        "\n  ".join((f"What is there ({len(steps)} checkpoints):", *refused)))
        return None

    def at(self, step: int) -> Loaded:
        """The checkpoint of this step, which `load` has found whole: of the tensors only names and lengths are read."""
        self._refuse_newer(step)
        place = self.folder / folder_of(step)
        return _loaded(step, Saved(place, manifests.read(place)))

    def tidy(self, step: int, best: int | None) -> list[str]:
        """End what a killed save of this step, the newest, may have begun. Returns what could not be removed."""
        with system.told(self.folder):
            notes = removal.tidied(self.folder)
            self._point(step, best)
            return notes + self._thinned(step)

    def _put(self, step: int, files: Sequence[Path], values: bytes) -> list[str]:
        """Make a checkpoint of files that were written aside, all of whose parts must be there."""
        target, notes = self.folder / folder_of(step), list[str]()
        missing = [path.name for path in files if not path.exists()]
        if missing:
            raise wrong(target, f"written by {len(files)} processes", f"without {missing[0]}",
                        "The process that holds it tells why.")
        Stored.of(files, {})
        if target.exists():
            try:
                manifests.read(target)
            except FolderError:  # one of this very step that is damaged, and so could not be replaced
                notes += removal.removed(self.folder, [step])
        folders.save(target, {**{path.name: partial(os.rename, path) for path in files}, VALUES: values})
        return notes

    def _point(self, step: int, best: int | None) -> None:
        """Tell which checkpoint is the newest."""
        part = self.folder / f".{POINTER}.part"
        part.write_text(json.dumps({"format": FORMAT, "step": step, "best": best}) + "\n")
        system.sync(part)
        os.replace(part, self.folder / POINTER)
        system.sync(self.folder)

    def _named(self) -> int | str | None:
        """The step that the pointer tells, or None where there is none, or why it cannot be read."""
        path = self.folder / POINTER
        if not os.path.lexists(path):
            return None
        step = _json(path).get("step")
        return step if isinstance(step, int) else f"{path} cannot be read."

    def _thinned(self, step: int) -> list[str]:
        """Remove what need not stay after this step: all but the last ones, and the best that each of these knows.

        What is of later steps was passed over when this training was resumed, and is not of its past.
        """
        steps = self.steps()
        last = [number for number in steps if number <= step][-self.keep:]
        best = [_json(self.folder / folder_of(number) / VALUES).get("best") for number in last]
        return removal.removed(self.folder, [number for number in steps if number not in (*last, *best)])

    def _refuse_newer(self, step: int) -> None:
        """Refuse a folder whose manifest is of a format that this version does not know, rather than pass it over."""
        path = self.folder / folder_of(step) / manifests.NAME
        _check_format(path, _json(path), manifests.FORMAT)


def _loaded(step: int, saved: Saved) -> Loaded:
    """What a folder holds."""
    path, content = saved.folder / VALUES, _parsed(saved.read_bytes(VALUES))
    _check_format(path, content, FORMAT)
    if not {"step", "best", "values"} <= content.keys():
        raise wrong(path, "the values of a checkpoint", "something else")
    if content["step"] != step:
        raise wrong(path, f"of step {step}, as its folder says", f"of step {content['step']!r:.20}")
    files = [saved.path(name) for name in saved.manifest.files if name != VALUES]
    return Loaded(step, content["best"], Stored.of(files, content["values"]))


def _json(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; an empty one where there is no such file, or something else in it."""
    with suppress(OSError):
        return _parsed(path.read_bytes())
    return {}


def _parsed(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        return content if isinstance(content, dict) else {}
    return {}


def _check_format(path: Path, content: Mapping[str, Any], known: int) -> None:
    form, version = content.get("format"), content.get("regard")
    # Another format of this very version is one flipped bit, and so a damaged file.
    if isinstance(form, int) and form > known and version != __version__:
        expected, got = f"of format {known}, which regard {__version__} reads", f"{form}, of regard {version!s:.40}"
        raise NewerError(str(checks.wrong(str(path), expected, got, "Install that version to resume this training.")))


def _encoded(step: int, best: int | None, values: Mapping[str, Any]) -> bytes:
    """The values as they are written."""
    content = {"format": FORMAT, "regard": __version__, "step": step, "best": best, "values": values}
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise checks.wrong("values", "plain JSON", f"not ({error})") from None
    if json.loads(text) != content:
        raise checks.wrong("values", "plain JSON, equal when it is read again", "not",
                           "Use lists in place of tuples, and strings as keys.")
    return text.encode() + b"\n"


def _files(count: int) -> list[str]:
    """The names of the files of the state, one for each process that has a part of it."""
    if count == 1:
        return ["state.safetensors"]
    return [f"state-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _check_steps(step: object, best: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise checks.wrong("step", "a whole number, at least 0", repr(step))
    if best is not None and (isinstance(best, bool) or not isinstance(best, int) or not 0 <= best <= step):
        raise checks.wrong("best", f"a step, at most {step}, or None", repr(best))


@contextmanager
def _then(barrier: Callable[[], None]) -> Iterator[None]:
    """Come to the barrier in any case: if one process fails, the others must not wait for it for ever."""
    try:
        yield
    finally:
        barrier()


