"""Files of tracks: every format, and each hostile file with its line."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from regard.data.sources.text import DataError, ReadLog
from regard.data.tracks.reading import frame_step, parse_columns, read_tracks, to_grid

ROWS = [(10, 1, 0.5, 1.0), (10, 2, 3.0, -1.0), (20, 1, 1.0, 1.0), (30, 1, 1.5, 1.25), (30, 2, 2.0, -1.0)]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def table(separator: str, header: str = "frame,agent,x,y") -> str:
    lines = [header.replace(",", separator)] if header else []
    return "\n".join([*lines, *(separator.join(map(str, row)) for row in ROWS)]) + "\n"


def check_rows(path: str, **options: str) -> None:
    """The scene of a file has exactly the rows of ROWS."""
    (scene,) = read_tracks([path], **options)
    found = [(frame, scene.agents[agent], *position) for frame, agent, position in
             zip(scene.frame, scene.agent, scene.position.tolist(), strict=True)]
    assert found == [(row[0], str(row[1]), row[2], row[3]) for row in ROWS]


@pytest.mark.parametrize("separator", [",", "\t", ";", " "])
def test_every_separator(tmp_path: Path, separator: str) -> None:
    check_rows(write(tmp_path / "a.csv", table(separator)))


def test_gzip_crlf_bom_comments_and_blank_lines(tmp_path: Path) -> None:
    text = "\ufeff" + table(",").replace("\n", "\r\n") + "\r\n# the end\r\n"
    check_rows(write(tmp_path / "a.csv.gz", gzip.compress(text.encode())))


@pytest.mark.parametrize("header", ["Frame,Track_ID,X,Y", "timestamp,pedestrian id,pos_x,pos_y", "t,id,x [m],y [m]"])
def test_headers_of_others(tmp_path: Path, header: str) -> None:
    check_rows(write(tmp_path / "a.csv", table(",", header)))


def test_other_columns_and_orders(tmp_path: Path) -> None:
    lines = ["y,speed,agent,frame,x,kind,scene"]
    lines += [f"{y},9,{agent},{frame},{x},walker,s{agent}" for frame, agent, x, y in ROWS]
    one, two = read_tracks([write(tmp_path / "a.csv", "\n".join(lines))])
    assert [one.name.endswith("(s1)"), two.name.endswith("(s2)")] == [True, True]
    assert one.kinds == ("walker",)
    assert two.position.tolist() == [[3.0, -1.0], [2.0, -1.0]]


def test_four_columns_without_a_header_are_read_and_said(tmp_path: Path) -> None:
    path, log = write(tmp_path / "a.txt", table(" ", "")), ReadLog()
    check_rows(path)
    read_tracks([path], log=log)
    assert "a.txt" in log.notes[0]
    assert "frame, agent, x, y" in log.notes[0]


def test_named_columns_with_and_without_a_header(tmp_path: Path) -> None:
    lines = [f"{x}\t{agent}\tjunk\t{frame}\t{y}" for frame, agent, x, y in ROWS]
    check_rows(write(tmp_path / "a.tsv", "\n".join(lines)), columns="x,agent,-,frame,y")
    check_rows(write(tmp_path / "b.tsv", "\n".join(["a\tb\tc\td\te", *lines])), columns="x,agent,-,frame,y")


def test_agents_may_have_names_without_a_header(tmp_path: Path) -> None:
    (scene,) = read_tracks([write(tmp_path / "a.csv", "0,anna,1,2\n1,anna,2,2\n")], columns="frame,agent,x,y")
    assert scene.agents == ("anna",)
    assert len(scene.frame) == 2


def test_motchallenge(tmp_path: Path) -> None:
    text = "1,3,100,50,20,60,1,-1,-1,-1\n2,3,104,50,20,60,1,-1,-1,-1\n2,4,0,0,1,1,1,7.5,8.5,0\n"
    (scene,) = read_tracks([write(tmp_path / "gt.txt", text)])
    assert scene.position.tolist() == [[110.0, 110.0], [114.0, 110.0], [7.5, 8.5]]


def test_several_files_are_several_scenes(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, table(",")) for name in ("a.csv", "b.csv")]
    assert [scene.file for scene in read_tracks(paths)] == paths


def test_rows_in_any_order(tmp_path: Path) -> None:
    lines = table(",").splitlines()
    path = write(tmp_path / "a.csv", "\n".join([lines[0], lines[4], lines[3], lines[5], lines[1], lines[2]]))
    (scene,) = read_tracks([path])
    assert scene.frame.tolist() == [10, 10, 20, 30, 30]
    assert scene.unsorted is not None
    assert scene.unsorted.line == 3


@pytest.mark.parametrize(("text", "parts"), [
    ("frame,agent,x,y\n1,1,0,0\n1,1,2,2\n", [":3:", "line 2"]),
    ("frame,agent,x,y\n1,1,0,0\n2,1,zero,2\n", [":3:", "zero"]),
    ("frame,agent,x,y\n1,1,0,0\n2,1,nan,2\n", [":3:", "nan"]),
    ("frame,agent,x,y\n1,1,0,0\n2,1,1,inf\n", [":3:", "inf"]),
    ("frame,agent,x,y\n1,1,0,0\nsoon,1,1,1\n", [":3:", "soon"]),
    ("frame,agent,x,y\n1,1,0,0\n2,,1,1\n", [":3:", "agent"]),
    ("frame,agent,x,y\n1,1,0,0\n2,1,1\n", [":3:", "3 columns"]),
    ("frame,who,x,y\n1,1,0,0\n", [":1:", "agent", "who", "--columns"]),
    ("1,2,3\n", [":1:", "3 columns", "--columns"]), ("", ["no rows"]), ("frame,agent,x,y\n", ["no rows"]),
    ("frame,agent,x,y\n1,1,0,0\n2,1,1,1\n1e14,1,1,1\n", [":4:", "1e+14"]),
    (b"frame,agent,x,y\n1,1,\xff,0\n", [":2:", "0xFF"]), (b"\x1f\x8b\x08\x00", ["truncated"])])
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    path = write(tmp_path / "bad file.csv", text)
    with pytest.raises(DataError) as error:
        [to_grid(scene) for scene in read_tracks([path])]
    assert all(part in str(error.value) for part in ["bad file.csv", *parts]), str(error.value)


@pytest.mark.parametrize(("columns", "part"), [("frame,agent,x", "y"), ("frame,agent,x,y,x", "twice"),
                                               ("frame,agnt,x,y", "agent")])
def test_wrong_names_of_columns(columns: str, part: str) -> None:
    with pytest.raises(ValueError, match="--columns") as error:
        parse_columns(columns)
    assert part in str(error.value)


def test_the_grid_has_the_usual_step_and_leaves_out_what_is_between(tmp_path: Path) -> None:
    text = "frame,agent,x,y\n0,a,0,0\n10,a,1,0\n14,a,9,9\n20,a,2,0\n40,a,4,0\n0,b,5,5\n10,b,5,6\n"
    (scene,) = read_tracks([write(tmp_path / "a.csv", text)])
    assert frame_step(scene) == 10
    grid = to_grid(scene)
    assert grid.position[:, 0, 0].tolist()[:3] == [0, 1, 2]
    assert np.isnan(grid.position[3, 0, 0])
    assert grid.position[4, 0, 0] == 4
    assert scene.location(int(grid.off_grid[0])).line == 4
    assert to_grid(scene, 20).position[:, 0, 0].tolist() == [0, 2, 4]


def test_fractional_times(tmp_path: Path) -> None:
    text = "t,id,x,y\n" + "".join(f"{0.1 * step:.1f},1,{step},0\n" for step in range(50))
    (scene,) = read_tracks([write(tmp_path / "a.csv", text)])
    grid = to_grid(scene)
    assert grid.position[:, 0, 0].tolist() == list(range(50))
