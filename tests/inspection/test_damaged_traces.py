"""A trace file that is damaged, foreign or malicious is an error that names the file and what is wrong in it."""

import json

import pytest
import torch
from safetensors.torch import save_file

from regard.inspection.trace import Trace

HEADER = {
    "title": "t", "x-mine": [{"anything": None}],
    "sides": {"a": {"tokens": ["x", "y"], "text": "x y", "words": [{"start": 0, "end": 1, "first": 0, "last": 0}]}},
    "attentions": [{"name": "one", "layer": 0, "kind": "self", "queries": "a", "keys": "a", "heads": 2,
                    "score": "additive", "normalize": "relu", "mask": "tensor", "x-note": 1}],
}
TENSORS = {"attention.0.query": torch.randn(2, 2, 3), "attention.0.key": torch.randn(1, 2, 3),
           "attention.0.mask": torch.tensor([[[1, 0], [1, 1]]], dtype=torch.uint8),
           "attention.0.weight": torch.randn(2, 3), "attention.0.score_bias": torch.randn(2, 3),
           "attention.0.bias": torch.randn(1, 2, 2), "x-tensor": torch.zeros(1)}


def written(path, header=HEADER, tensors=TENSORS, **metadata):
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, path, {"format": "regard trace 1", "trace": text} | metadata)
    return path


def changed(path, value):
    """The header with another value at this path; None takes the key away."""
    header = json.loads(json.dumps(HEADER))
    *above, last = path
    at = header
    for key in above:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return header


def refusal(path):
    with pytest.raises(ValueError, match=r"a\.safetensors") as error:
        Trace.load(path)
    return str(error.value)


def test_undamaged_example_loads(tmp_path):
    look = Trace.load(written(tmp_path / "a.safetensors")).attentions[0].look
    q, k = TENSORS["attention.0.query"], TENSORS["attention.0.key"]
    hidden = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3) + TENSORS["attention.0.score_bias"][:, None, None])
    scores = (hidden * TENSORS["attention.0.weight"][:, None, None]).sum(-1) + TENSORS["attention.0.bias"]
    expected = torch.relu(scores) / torch.tensor([[1.0], [2.0]])
    expected[:, 0, 1] = 0
    torch.testing.assert_close(look.weights(), expected)


FIRST = ("attentions", 0)
HEADERS = {
    "unknown key": (("titel",), "t", 'unknown key "titel"; did you mean "title"?'),
    "unknown key inside": ((*FIRST, "layers"), 1, 'unknown key "layers" in [attentions[0]]; did you mean "layer"?'),
    "no sides": (("sides",), None, 'missing key "sides"'),
    "no name": ((*FIRST, "name"), None, 'missing key "name" in [attentions[0]]'),
    "sides as a list": (("sides",), [], '"sides": expected an object with a side for each name'),
    "a side as text": (("sides", "a"), "x", '"a" in [sides]: expected an object with tokens'),
    "tokens as text": (("sides", "a", "tokens"), "xy", '"tokens" in [sides.a]: expected an array'),
    "a token as a number": (("sides", "a", "tokens", 0), 1, '"tokens"[0]'),
    "one more token": (("sides", "a", "tokens", 1), "y", None),
    "a word without an end": (("sides", "a", "words", 0, "end"), None, 'missing key "end"'),
    "a word past the end": (("sides", "a", "words", 0, "end"), 9, "is not in the text of 3 characters"),
    "a grid of three": (("sides", "a", "grid"), [1, 2, 3], "two whole numbers"),
    "heads as text": ((*FIRST, "heads"), "2", '"heads" in [attentions[0]]: expected a whole number'),
    "other heads": ((*FIRST, "heads"), 4, 'tensor "attention.0.query": expected 4 heads'),
    "a wrong score": ((*FIRST, "score"), "adaptive", 'did you mean "additive"?'),
    "a score without parameters": ((*FIRST, "score"), "dot", "not expected: the header says score dot"),
    "a wrong normaliser": ((*FIRST, "normalize"), "max", '"normalize" in [attentions[0]]: expected one of'),
    "a wrong mask": ((*FIRST, "mask"), "casual", '"mask" in [attentions[0]]: expected "causal", "tensor" or'),
    "a window of floats": ((*FIRST, "mask"), {"left": 1.5, "right": 0}, '"mask" in [attentions[0]]'),
    "a mask that has no tensor": ((*FIRST, "mask"), "causal", 'tensor "attention.0.mask": not expected'),
    "attentions as an object": (("attentions",), {}, '"attentions": expected an array of objects'),
    "an attention as a number": (FIRST, 3, "expected an object, but got 3"),
    "no attention for the tensors": (("attentions",), [], 'unknown tensor "attention.0.'),
    "written without a side": (("written",), {"log_probabilities": []}, 'missing key "side" in [written]'),
    "influence as a list": (("influence",), [], '"influence": expected an object'),
    "influence without tokens": (("influence",), {"rows": "a", "columns": "a", "values": []}, 'missing key "tokens"'),
    "influence with a text": (("influence",), {"rows": "a", "columns": "a", "tokens": [[0]], "values": [["x"], [1]]},
                              '"values"[0][0] in [influence]'),
    "influence with a number for a row": (("influence",), {"rows": "a", "columns": "a", "tokens": [[0]],
                                                           "values": [1, [1]]}, '"values"[0] in [influence]'),
    "influence that is not defined": (("influence",), {"rows": "a", "columns": "a", "tokens": [[0]],
                                                       "values": [[None], [0]]}, None),
    "measured heads as a list": (("heads",), [], '"heads": expected an object'),
    "measured heads without a cost": (("heads",), {"data": "d", "sentences": 1, "loss": 1.0, "attentions": [
        {"name": "a", "even": {}, "heads": [{"cost_error": 0.0, "roles": {}}]}]},
        'missing key "cost" in [heads.attentions[0].heads[0]]'),
    "a role that is no number": (("heads",), {"data": "d", "sentences": 1, "loss": 1.0, "attentions": [
        {"name": "a", "even": {"first": "x"}, "heads": []}]}, '"first" in [heads.attentions[0].even]'),
    "predictions as text": (("predictions",), "x", '"predictions": expected an object'),
    "predictions without a side": (("predictions",), {"log_probabilities": [None, 0]}, 'missing key "side"'),
    "predictions of one token": (("predictions",), {"side": "a", "log_probabilities": [None]}, "2 tokens"),
    "predictions of text": (("predictions",), {"side": "a", "log_probabilities": [None, "x"]},
                            '"log_probabilities"[1] in [predictions]'),
    "predictions without candidates": (("predictions",), {"side": "a", "log_probabilities": [None, -1]}, None),
    "candidates of one place": (("predictions",), {"side": "a", "log_probabilities": [None, -1], "candidates": [["x"]],
                                                   "candidate_log_probabilities": [[-1]]}, "a row for each of the 2"),
    "candidates without numbers": (("predictions",), {"side": "a", "log_probabilities": [None, -1],
                                                      "candidates": [[], ["x"], ["y"]]}, "a number for each"),
    "candidates and numbers": (("predictions",), {"side": "a", "log_probabilities": [None, -1],
                                                  "candidates": [[], ["x"], ["y"]],
                                                  "candidate_log_probabilities": [[], [-1], [-2]]}, None),
    "pixels that are no base64": (("sides", "a", "image"), {"height": 1, "width": 1, "channels": 1, "pixels": "?"},
                                  '"pixels" in [sides.a.image]: expected bytes as base64'),
    "an image without a width": (("sides", "a", "image"), {"height": 1, "channels": 1, "pixels": "AA=="},
                                 'missing key "width"'),
    "a node without a parent": (("search",), {"beams": 1, "nodes": [{"token": "a"}], "best": []},
                                'missing key "parent" in [search.nodes[0]]'),
}


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_a_header_is_read_strictly(tmp_path, name):
    path, value, message = HEADERS[name]
    file = written(tmp_path / "a.safetensors", changed(path, value))
    if message is None:
        Trace.load(file)
    else:
        assert message in refusal(file)


@pytest.mark.parametrize(("text", "message"), [
    ("", "must be a JSON object"), ("[]", "must be a JSON object"), ("{", "must be a JSON object"),
    ('{"sides": {}, "sides": {}}', "'sides' occurs twice"), ('{"search": {"total": NaN}}', "NaN is not a JSON number"),
    ("[" * 100_000, "nested too deeply"),
])
def test_invalid_header_is_reported(tmp_path, text, message):
    assert message in refusal(written(tmp_path / "a.safetensors", text))


TENSORS_WRONG = {
    "no query": ({"attention.0.query": None}, 'tensor "attention.0.query": missing; expected it, or "weights"'),
    "no weight": ({"attention.0.weight": None}, 'tensor "attention.0.weight": missing'),
    "no mask": ({"attention.0.mask": None}, 'tensor "attention.0.mask": missing'),
    "weights too": ({"attention.0.weights": torch.zeros(2, 2, 2)}, "expected either weights"),
    "integers": ({"attention.0.key": torch.zeros(1, 2, 3, dtype=torch.int64)}, "float64, but it is int64"),
    "a mask of floats": ({"attention.0.mask": torch.zeros(1, 2, 2)}, "expected bool or uint8, but it is float32"),
    "rows short": ({"attention.0.query": torch.zeros(2, 1, 3)}, "expected (2, 1, 2) or (1, 1, 2)"),
    "another width": ({"attention.0.key": torch.zeros(1, 2, 4)}, "expected the width 3 of the query"),
    "heads that do not divide": ({"attention.0.key": torch.zeros(3, 2, 3)}, "heads that divide 2"),
    "a vector": ({"attention.0.query": torch.zeros(3)}, "expected 2 heads × rows × width, but it is (3,)"),
    "unknown": ({"attention.0.querry": torch.zeros(1)}, 'Did you mean "attention.0.query"?'),
    "two biases": ({"attention.0.distance_bias": torch.zeros(2, 3)}, "both are there"),
}


@pytest.mark.parametrize("name", sorted(TENSORS_WRONG))
def test_tensors_must_match_the_header(tmp_path, name):
    change, message = TENSORS_WRONG[name]
    tensors = {key: tensor for key, tensor in (TENSORS | change).items() if tensor is not None}
    assert message in refusal(written(tmp_path / "a.safetensors", tensors=tensors))


def test_side_of_another_length_is_reported(tmp_path):
    header = changed(("sides", "a", "tokens"), ["x", "y", "z"])
    assert 'side "a" has 3 tokens, but there are 2 rows' in refusal(written(tmp_path / "a.safetensors", header))


def test_another_format_is_reported(tmp_path):
    assert "has 'regard trace 2'" in refusal(written(tmp_path / "a.safetensors", format="regard trace 2"))
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert "not a trace" in refusal(tmp_path / "a.safetensors")


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_truncated_file_is_reported(tmp_path, kept):
    data = written(tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(data[:kept if isinstance(kept, int) else int(len(data) * kept)])
    assert "damaged" in refusal(tmp_path / "a.safetensors")


def test_no_file_and_no_pickle(tmp_path):
    assert "No such file" in refusal(tmp_path / "a.safetensors")
    torch.save({}, tmp_path / "a.safetensors")
    assert "a pickle" in refusal(tmp_path / "a.safetensors")
