"""Records: packed, unpacked, and refused where the data beside them are other ones."""

import pytest

from regard.data.tokenizer.loading import unpack_files
from regard.data.tokenizer.subwords import BytesRecord, CharactersRecord, hash_data, pack_files

RECORD = CharactersRecord(normalisation="nfc", sha256=hash_data(b'["a"]'))
OTHER = b'["b"]'
FILES = pack_files("tokenizer", RECORD, {"json": b'["a"]'})


def test_what_is_packed_is_unpacked_among_other_files():
    assert unpack_files({**FILES, "config.toml": b"\xff"}, "tokenizer") == (RECORD, {"json": b'["a"]'})
    assert unpack_files(pack_files("x.y", BytesRecord(normalisation="exact"), {}), "x.y")[1] == {}


@pytest.mark.parametrize(("change", "message"), [
    ({"tokenizer.json": OTHER}, f"`tokenizer.json` must be as it was recorded, with sha256 {RECORD.sha256}, but is "
                                f"another, with sha256 {hash_data(OTHER)}"),
    ({"tokenizer.json": None}, "`files` must be with tokenizer.json, but is without it: tokenizer.toml"),
    ({"tokenizer.toml": None}, "`files` must be with tokenizer.toml"),
    ({"tokenizer.toml": b"\xff"}, "`tokenizer.toml` must be a record of a tokenizer, but is no UTF-8"),
    ({"tokenizer.toml": b"format = 1\n"}, 'tokenizer.toml: missing table "tokenizer"'),
    ({"tokenizer.toml": b"format = 2\n"}, "`tokenizer.toml` must be of format 1, but is of format 2 instead. Install"),
    ({"tokenizer.toml": b"["}, "tokenizer.toml:1: not TOML"),
    ({"tokenizer.toml": FILES["tokenizer.toml"].replace(b"characters", b"charakters")}, 'did you mean "characters"?'),
    ({"tokenizer.toml": FILES["tokenizer.toml"].replace(b"nfc", b"nfkc")}, 'did you mean "nfc"?'),
])
def test_what_does_not_belong_together(change, message):
    files = {name: data for name, data in (FILES | change).items() if data is not None}
    with pytest.raises(ValueError, match="tokenizer") as error:
        unpack_files(files, "tokenizer")
    assert message in str(error.value)
