"""The store of downloads: random names, one download, ten minutes, a bound on all; and which models are served."""

import os
import stat

import pytest
import texting
from served import catalog

from regard.serving.files import KEEP_SECONDS, DownloadStore, download_name
from regard.serving.requests import HttpError


@pytest.fixture
def store():
    now = [0.0]
    found = DownloadStore(100, lambda: now[0])
    found.now = now
    yield found
    found.close()
    assert not found.folder.exists()


def put(store, size=10, **options):
    path = store.new_path(".txt")
    path.write_bytes(b"x" * size)
    return store.add(path, "a.txt", **options), path


def test_a_file_is_taken_once_unless_it_is_a_page(store):
    token, path = put(store)
    assert len(token) >= 32
    assert token not in str(path)
    assert store.take("other") is None
    assert store.take(token, keep=True).path == path
    assert store.take(token).path == path
    assert store.take(token) is None
    page, _ = put(store, once=False)
    assert store.take(page) == store.take(page)


def test_a_file_is_gone_after_ten_minutes(store):
    token, path = put(store)
    store.now[0] = KEEP_SECONDS - 1
    assert store.take(token, keep=True)
    store.now[0] = KEEP_SECONDS
    store.sweep()
    assert not path.exists()
    assert store.take(token) is None


def test_all_files_together_are_bounded(store):
    tokens = [put(store)[0] for _ in range(10)]
    with pytest.raises(HttpError) as error:
        put(store)
    assert error.value.status == 429
    assert len(list(store.folder.iterdir())) == 10
    store.take(tokens[0]).path.unlink()
    put(store)
    assert len({*tokens}) == 10


def test_pages_give_way_to_what_is_new(store):
    token, _ = put(store, 40)
    pages = [put(store, 30, once=False) for _ in range(4)]
    assert [store.take(page) is not None for page, _ in pages] == [False, False, True, True]
    assert [path.exists() for _, path in pages] == [False, False, True, True]
    put(store, 60)
    assert store.take(token, keep=True)
    assert [store.take(page) for page, _ in pages] == [None] * 4


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_only_this_user_can_enter_the_folder(store):
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("name", "want"), [
    ("app.po", "app.fr.po"), ("a.tsv.gz", "a.fr.tsv.gz"), ("../x/b.txt", "b.fr.txt"), ("C:\\d\\c.txt", "c.fr.txt"),
    ("a\r\nb.txt", "a_b.fr.txt"), ('a"b.txt', "a_b.fr.txt"),
])
def test_the_name_of_a_download(name, want):
    assert download_name(name, "fr") == want


# Models

def test_the_inspector_shares_weights_and_no_modules():
    models = catalog(completers=False)
    try:
        model, task = models.models[0], texting.translator()
        pairs = zip(model.inspector.model.parameters(), task.model.parameters(), strict=True)
        assert all(one.data_ptr() == other.data_ptr() for one, other in pairs)
        assert not {*map(id, model.inspector.model.modules())} & {*map(id, task.model.modules())}
    finally:
        models.close()
