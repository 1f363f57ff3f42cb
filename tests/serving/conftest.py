"""One server for all tests of a process: en-fr, fr-en and a language model, untrained and small."""

import pytest

pytest.importorskip("fastapi", reason="fastapi, of the extra `serve`, is not installed")

import served


@pytest.fixture(scope="session")
def server():
    from regard.serving.server import BackgroundServer

    with BackgroundServer(served.catalog(), timeout=60, max_characters=2000, max_batch=16, read_timeout=1.5,
                          max_file_size=100_000) as running:
        yield running


@pytest.fixture(scope="session")
def address(server):
    return server.address
