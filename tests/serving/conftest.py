"""One server for all tests of a process: en-fr, fr-en and a language model, untrained and small."""

import pytest

pytest.importorskip("fastapi", reason="fastapi, of the extra `serve`, is not installed")


@pytest.fixture(scope="module", autouse=True)
def _short_outputs():
    """Untrained models write until their limit, so it is low. For a module: tests of other folders run between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.tasks.translator.EXTRA_LENGTH", 4)
        yield


@pytest.fixture(scope="package")
def server():
    import served

    from regard.serving.server import BackgroundServer

    with BackgroundServer(served.catalog(), timeout=60, max_characters=2000, max_batch=16, read_timeout=1.5,
                          max_file_size=100_000) as running:
        yield running


@pytest.fixture(scope="package")
def address(server):
    return server.address
