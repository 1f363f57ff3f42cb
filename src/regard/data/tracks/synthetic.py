"""Synthetic tracks: people who walk to a goal, avoid each other, walk in groups, and stand.

    simulate(steps=400, agents=12, seed=0)        rows (frame, agent, x, y, kind) of one scene, in metres

A simple social force model (Helbing and Molnár 1995): every person accelerates towards a desired velocity, and others
who will come near push it aside. Members of a group share a goal and keep together; people who stand sway a little, and
start to walk after a while. Those who reach the edge of the place leave, and others enter. Positions are rounded to
millimetres; the same seed gives the same tracks on every machine that rounds alike.

It is data to try everything with, and not a model of people: a forecaster should find who walks with whom and who will
give way, because nothing else decides how these people move.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SIDE = 14.0
"""Metres of a side of the place."""
STEP_SECONDS = 0.4
SUBSTEPS = 4
RELAXATION = 0.6
"""Seconds in which a person reaches the desired velocity."""
PUSH, RANGE, HORIZON = 2.2, 0.6, 1.5
"""The push away from others, metres per second²; the metres over which it fades; the seconds that people look ahead."""
COHESION = 0.7
GROUP_SHARE, STANDING_SHARE = 0.35, 0.15


class TrackRow(NamedTuple):
    """One person in one frame."""

    frame: int
    agent: int
    x: float
    y: float
    kind: str


@dataclass
class Person:
    """A person of the simulation."""

    number: int
    position: Floats
    velocity: Floats
    goal: Floats
    speed: float
    group: int | None = None
    waits: int = 0
    """Steps that the person still stands."""

    @property
    def kind(self) -> str:
        """What kind of person this is."""
        return "group" if self.group is not None else "single"


def simulate(*, steps: int = 400, agents: int = 12, seed: int = 0) -> Iterator[TrackRow]:
    """The rows of one scene, frame by frame.

    Args:
        steps: the number of frames, 0.4 s apart.
        agents: how many people are there at a time, about.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    people: list[Person] = []
    counter, groups = 0, 0
    for frame in range(steps):
        while len(people) < agents:
            size = int(rng.integers(2, 4)) if rng.random() < GROUP_SHARE else 1
            people += _arrivals(rng, counter, size, groups if size > 1 else None, inside=frame == 0)
            counter, groups = counter + size, groups + (size > 1)
        for person in people:
            x, y = np.round(person.position, 3)
            yield TrackRow(frame, person.number, float(x), float(y), person.kind)
        for _ in range(SUBSTEPS):
            _move(people, STEP_SECONDS / SUBSTEPS, rng)
        for person in people:
            person.waits = max(0, person.waits - 1)
        people = [person for person in people if np.abs(person.position).max() < SIDE / 2 + 0.5]


def _arrivals(rng: np.random.Generator, number: int, size: int, group: int | None, *, inside: bool) -> list[Person]:
    """A person or a group that enters at an edge, or is there from the beginning."""
    edge, goal_edge = rng.choice(4, 2, replace=False)
    start, goal = _edge_point(rng, int(edge), SIDE / 2), _edge_point(rng, int(goal_edge), SIDE)
    if inside:
        start = rng.uniform(-SIDE / 2, SIDE / 2, 2)
    speed = float(np.clip(rng.normal(1.3, 0.25), 0.5, 2.0))
    waits = int(rng.integers(20, 120)) if size == 1 and rng.random() < STANDING_SHARE else 0
    if waits:
        start = rng.uniform(-SIDE / 3, SIDE / 3, 2)
    ahead = (goal - start) / np.linalg.norm(goal - start)
    beside = np.array([-ahead[1], ahead[0]])
    return [Person(number + place, start + beside * 0.7 * place + rng.normal(0, 0.05, 2),
                   np.zeros(2) if waits else ahead * speed, goal + beside * 0.7 * place, speed, group, waits)
            for place in range(size)]


def _edge_point(rng: np.random.Generator, edge: int, distance: float) -> Floats:
    along = rng.uniform(-SIDE / 3, SIDE / 3)
    return np.array([(-distance, along), (distance, along), (along, -distance), (along, distance)][edge])


def _move(people: list[Person], seconds: float, rng: np.random.Generator) -> None:
    """Move all people by a fraction of a step."""
    place = np.array([person.position for person in people])
    velocity = np.array([person.velocity for person in people])
    speed = np.array([person.speed for person in people])
    force = _forces(people, place, velocity, speed)
    walked = velocity + seconds * (force + rng.normal(0, 0.3, velocity.shape))
    walked *= np.minimum(1.0, 1.3 * speed / np.maximum(np.linalg.norm(walked, axis=1), 1e-9))[:, None]
    swayed = 0.5 * velocity + rng.normal(0, 0.02, velocity.shape)
    stands = np.array([person.waits > 0 for person in people])[:, None]
    velocity = np.where(stands, swayed, walked)
    for index, person in enumerate(people):
        person.velocity = velocity[index]
        person.position = place[index] + seconds * velocity[index]


def _forces(people: list[Person], place: Floats, velocity: Floats, speed: Floats) -> Floats:
    """The acceleration of each person, (N, 2), if all of them walk."""
    ahead = np.array([person.goal for person in people]) - place
    wanted = ahead * (speed / np.maximum(np.linalg.norm(ahead, axis=1), 1e-9))[:, None]
    force = (wanted - velocity) / RELAXATION
    groups = np.array([-1 - number if person.group is None else person.group for number, person in enumerate(people)])
    friends = (groups[:, None] == groups) & ~np.eye(len(people), dtype=bool)
    count = friends.sum(1)
    gap = np.where(count[:, None] > 0, friends @ place / np.maximum(count, 1)[:, None] - place, 0.0)
    force += COHESION * gap * np.maximum(0.0, np.linalg.norm(gap, axis=1) - 0.8)[:, None]
    apart, closing = place[:, None] - place, velocity[:, None] - velocity
    time = np.clip(-(apart * closing).sum(-1) / np.maximum((closing ** 2).sum(-1), 1e-9), 0.0, HORIZON)
    nearest = apart + time[..., None] * closing  # where two people are when they are nearest
    distance = np.linalg.norm(nearest, axis=-1)
    sideways = np.stack([-closing[..., 1], closing[..., 0]], -1)
    away = np.where(distance[..., None] > 1e-6, nearest / np.maximum(distance, 1e-6)[..., None], sideways)
    push = PUSH * np.exp(-distance / RANGE) * (1 - time / (2 * HORIZON)) * np.where(friends, 0.3, 1.0)
    np.fill_diagonal(push, 0.0)
    return force + (push[..., None] * away).sum(1)
