"""What the tests of sources share: files with given bytes, and what an error of them says."""

import gzip

import pytest

from regard.data.sources.text import DataError


@pytest.fixture
def file(tmp_path):
    """Write bytes (or text, as UTF-8) under a name in a new folder, and give the path; `.gz` packs them."""

    def write(name, content):
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
        return str(path)

    return write


@pytest.fixture
def refused(tmp_path):
    """The message of the DataError that reading something to its end brings, without the folder's name."""

    def message(read):
        with pytest.raises(DataError) as error:
            list(read())
        return str(error.value).replace(f"{tmp_path}/", "")

    return message
