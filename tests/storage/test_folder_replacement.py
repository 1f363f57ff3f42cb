"""What is mended after a killed save, and what is kept where files of the user's are in the way."""

import os

import pytest

from regard.storage import filesystem, folder
from regard.storage import folder as replacing


def saved(target, tag):
    folder.save(target, {"weights": tag.encode()})
    return target


def weights(target):
    return folder.load(target, lambda saved: saved.read_text("weights"))


def test_the_old_folder_comes_back_where_the_new_one_is_missing(tmp_path):
    target = saved(tmp_path / "model", "old")
    os.rename(target, replacing.backup_path(target))
    assert weights(target) == "old"
    folder.prepare(target)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert weights(target) == "old"


def test_what_is_the_users_comes_back_from_what_a_killed_save_left(tmp_path):
    target = saved(tmp_path / "model", "new")
    left = saved(replacing.staging_path(target), "old")
    (left / "notes").write_text("mine")
    (left / "deep" / "er").mkdir(parents=True)
    (left / "deep" / "er" / "a").write_text("mine")
    (target / "deep").mkdir()
    (target / "deep" / "b").write_text("mine too")
    folder.prepare(target)
    assert weights(target) == "new"
    assert (target / "notes").read_text() == (target / "deep" / "er" / "a").read_text() == "mine"
    assert (target / "deep" / "b").read_text() == "mine too"
    assert not left.exists()


def test_nothing_in_the_folder_is_written_over_by_what_comes_back(tmp_path):
    target = saved(tmp_path / "model", "new")
    for name in ("notes", "folder", "notes.kept"):
        (target / name).write_text("newer")
    left = saved(replacing.staging_path(target), "old")
    (left / "notes").write_text("older")
    (left / "folder").mkdir()
    folder.prepare(target)
    assert (target / "notes").read_text() == "newer"
    assert (target / "notes.kept").read_text() == "newer"
    assert (target / "notes.kept2").read_text() == "older"
    assert (target / "folder.kept").is_dir()
    assert not left.exists()


def test_the_users_files_come_back_where_the_folder_is_gone(tmp_path):
    target = tmp_path / "model"
    left = saved(replacing.staging_path(target), "old")
    (left / "notes").write_text("mine")
    folder.prepare(target)
    assert (target / "notes").read_text() == "mine"
    assert weights(target) == "old"


def test_without_hard_links_the_users_files_are_moved(tmp_path, monkeypatch):
    def no_link(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    target = saved(tmp_path / "model", "old")
    (target / "deep").mkdir()
    (target / "deep" / "notes").write_text("mine")
    number = (target / "deep" / "notes").stat().st_ino
    monkeypatch.setattr(os, "link", no_link)
    saved(target, "new")
    assert weights(target) == "new"
    assert (target / "deep" / "notes").read_text() == "mine"
    assert (target / "deep" / "notes").stat().st_ino == number


def test_a_second_rename_that_fails_is_undone(tmp_path, monkeypatch):
    target, rename = saved(tmp_path / "model", "old"), os.rename

    def failing(source, goal):
        if source == replacing.staging_path(target) and goal == target:
            raise OSError(5, "Input/output error", str(source))
        rename(source, goal)

    monkeypatch.setattr(filesystem, "exchange", lambda first, second: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="model could not be saved: Input/output error"):
        saved(target, "new")
    assert target.is_dir()
    assert weights(target) == "old"


def test_what_cannot_be_moved_is_told_and_kept(tmp_path, monkeypatch):
    target, unlink = saved(tmp_path / "model", "old"), os.unlink
    (target / "notes").write_text("mine")

    def failing(path, **options):
        if str(path).endswith(".saving/notes"):
            raise OSError(16, "Device or resource busy", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        with pytest.raises(filesystem.FolderError,
                           match=r"\.model\.saving: cannot be removed: .*busy.*model; the new version is saved"):
            saved(target, "new")
    assert weights(target) == "new"
    assert (target / "notes").read_text() == "mine"
    saved(target, "newer")
    assert weights(target) == "newer"
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "notes", "weights"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_left_overs_that_are_not_understood_are_not_removed(tmp_path):
    target = saved(tmp_path / "model", "old")
    replacing.staging_path(target).mkdir()
    (replacing.staging_path(target) / "manifest.json").write_text("{}")
    with pytest.raises(filesystem.FolderError, match=r"\.model\.saving/manifest\.json"):
        saved(target, "new")
    assert weights(target) == "old"
    assert replacing.staging_path(target).exists()


def test_nothing_is_mended_where_something_else_has_taken_the_place(tmp_path):
    target = tmp_path / "model"
    left = saved(replacing.staging_path(target), "old")
    (left / "notes").write_text("mine")
    target.mkdir()
    (target / "thesis.tex").write_text("another's")
    with pytest.raises(filesystem.FolderError, match=r"thesis\.tex"):
        folder.prepare(target)
    assert (left / "notes").read_text() == "mine"
    assert [path.name for path in target.iterdir()] == ["thesis.tex"]
