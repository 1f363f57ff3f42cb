"""RWKV-7 files: a stored one against the oracle, both layouts, what is refused; a trained model where it is there.

`tests/stored/rwkv7.safetensors` has random numbers: two layers, width 8, two heads, 6 tokens. The trained model is
BlinkDL's demonstration that reverses digits; REGARD_RWKV7 names its file.
"""

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import regard
from regard.reference import blocks as oracle_blocks
from regard.reference import rwkv as oracle
from regard.storage.rwkv7 import read_rwkv7

ROOT = Path(__file__).parent.parent.parent
STORED = ROOT / "tests" / "stored" / "rwkv7.safetensors"
TRAINED = Path(os.environ.get("REGARD_RWKV7", ROOT.parent / "shared" / "data" / "rwkv7" / "reverse.safetensors"))
NUMBERED = re.compile(r"(ln|rwkv|ffn|rosa)(\d+)([abc]?)\.(.*)")


def oracle_logits(tensors, ids, heads):
    """The logits of a file in the layout of the demonstrations, as the oracle computes them."""
    layers = sum(name.endswith(".r_k") for name in tensors)

    def norm(name, X):
        return np.stack([oracle_blocks.layer_norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for x in X])

    X, first = tensors["e.weight"].astype(np.float64)[ids], None
    for i in range(1, layers + 1):
        own = {name.removeprefix(f"rwkv{i}."): part for name, part in tensors.items() if name.startswith(f"rwkv{i}.")}
        names = {"receptance.weight": "W_r", "key.weight": "W_k", "value.weight": "W_v", "output.weight": "W_o",
                 "ln_x.weight": "ln_weight", "ln_x.bias": "ln_bias"}
        P = {names.get(name, name): part if part.ndim == 2 else part.reshape(-1) for name, part in own.items()}
        mixed, first = oracle.time_mix7(norm(f"ln{i}a", X), P, heads, first)
        X = X + mixed + tensors[f"rosa{i}.o.bias"]
        P = {"m_k": tensors[f"ffn{i}.x_k"].reshape(-1), "W_k": tensors[f"ffn{i}.key.weight"],
             "W_v": tensors[f"ffn{i}.value.weight"]}
        X = X + oracle.channel_mix7(norm(f"ln{i}b", X), P)
    return norm("lno", X) @ tensors["o.weight"].T + tensors["o.bias"]


def released(tensors):
    """The same model in the layout of RWKV-LM's released files, which have no rosa, and a norm after the embedding."""
    found = {}
    for name, tensor in tensors.items():
        match = NUMBERED.fullmatch(name)
        if match is None:
            found[name.replace("lno.", "ln_out.").replace("e.weight", "emb.weight") if name[0] in "le" else
                  name.replace("o.", "head.")] = tensor
        elif match[1] != "rosa" and match[3] != "c":
            part = {"ln": {"a": "ln1", "b": "ln2"}.get(match[3]), "rwkv": "att", "ffn": "ffn"}[match[1]]
            found[f"blocks.{int(match[2]) - 1}.{part}.{match[4]}"] = tensor
    width = tensors["e.weight"].shape[1]
    return found | {"blocks.0.ln0.weight": np.ones(width, np.float32), "blocks.0.ln0.bias": np.zeros(width, np.float32)}


def test_a_file_is_the_oracles_model():
    file, tensors, ids = read_rwkv7(STORED), load_file(STORED), [1, 4, 0, 5, 2, 2, 3]
    logits = file.model.double()(regard.Tokens.of([ids]))[0].detach().numpy()
    np.testing.assert_allclose(logits, oracle_logits(tensors, ids, heads=2), rtol=1e-11, atol=1e-11)
    used = sum(part.size for name, part in tensors.items() if name not in file.ignored)
    assert used == file.config.parameters() == sum(map(torch.numel, file.model.parameters()))
    assert set(file.ignored) == {"rwkv1.v0", "rwkv1.v1", "rwkv1.v2", *(f"rosa{i}.{part}" for i in (1, 2)
                                                                     for part in ("o.weight", "x_q")),
                                 *(f"ln{i}c.{part}" for i in (1, 2) for part in ("weight", "bias"))}


def test_the_layout_of_released_files(tmp_path):
    tensors = load_file(STORED)
    tensors |= {f"rosa{i}.o.bias": np.zeros(8, np.float32) for i in (1, 2)}
    save_file(released(tensors), tmp_path / "model.safetensors")
    file = read_rwkv7(tmp_path / "model.safetensors")
    table = tensors["e.weight"].astype(np.float64)
    tensors["e.weight"] = np.stack([oracle_blocks.layer_norm(x, np.ones(8), np.zeros(8)) for x in table])
    logits = file.model.double()(regard.Tokens.of([[5, 0, 1, 3]]))[0].detach().numpy()
    np.testing.assert_allclose(logits, oracle_logits(tensors, [5, 0, 1, 3], heads=2), rtol=1e-11, atol=1e-11)
    assert file.ignored == ("blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2")


def test_pth_files_are_opened_by_the_safe_loader(tmp_path):
    tensors = {name: torch.from_numpy(part) for name, part in load_file(STORED).items()}
    torch.save(tensors, tmp_path / "model.pth")
    ids = regard.Tokens.of([[1, 2, 3]])
    assert torch.equal(read_rwkv7(tmp_path / "model.pth").model(ids), read_rwkv7(STORED).model(ids))
    for function, name in ((print, "print"), (os.getcwd, r"posix\.getcwd")):
        torch.save({**tensors, "run": function}, tmp_path / "code.pth")
        with pytest.raises(ValueError, match=rf"code\.pth.*refuses.*{name} ") as refusal:
            read_rwkv7(tmp_path / "code.pth")
        assert "weights_only" not in str(refusal.value)  # torch advises to turn the safe loader off
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth.*list"):
        read_rwkv7(tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"none\.pth.*cannot be read"):
        read_rwkv7(tmp_path / "none.pth")
    for size in (0, 5, 500):
        (tmp_path / "short.pth").write_bytes((tmp_path / "model.pth").read_bytes()[:size])
        with pytest.raises(ValueError, match=r"short\.pth.*damaged"):
            read_rwkv7(tmp_path / "short.pth")


@pytest.mark.parametrize(("change", "message"), [
    (lambda tensors: tensors | {"rwkv1.q": np.zeros(3, np.float32)}, r"rwkv1\.q"),
    (lambda tensors: tensors | {"ffn1.receptance.weight": np.zeros((8, 8), np.float32)}, r"ffn1\.receptance\.weight"),
    (lambda tensors: {name: part for name, part in tensors.items() if name != "rwkv2.w1"}, r"mixer\.w1"),
    (lambda tensors: {name: part for name, part in tensors.items() if name != "ln2b.bias"}, r"around_feed_forward"),
    (lambda tensors: tensors | {"rwkv1.w2": np.zeros((3, 8), np.float32)}, r"w2.*\(2, 8\).*\(3, 8\)"),
    (lambda tensors: tensors | {"rwkv1.r_k": np.zeros(8, np.float32)}, r"r_k.*\(8,\)"),
    (lambda tensors: tensors | {"rwkv1.r_k": np.zeros((2, 3), np.float32)}, "multiple of the 3"),
    (lambda tensors: tensors | {"rwkv1.r_k": np.zeros((4, 2), np.float32)}, r"rwkv2\.r_k.*\(2, 4\).*\(4, 2\)"),
    (lambda tensors: tensors | {"rwkv1.r_k": np.zeros((2, 0), np.float32)}, r"r_k.*\(2, 0\)"),
    (lambda tensors: tensors | {"rwkv2.w1": np.zeros((8, 0), np.float32)}, r"w1.*\(8, 0\)"),
    (lambda tensors: tensors | {"e.weight": np.zeros((0, 8), np.float32)}, r"tokens.*\(0, 8\)"),
    (lambda tensors: {"other": np.zeros(3, np.float32)}, r"blocks\.0\.att\.r_k.*rwkv1\.r_k"),
])
def test_what_is_not_known_is_refused(tmp_path, change, message):
    save_file(change(load_file(STORED)), tmp_path / "changed.safetensors")
    with pytest.raises(ValueError, match=f"(?s)changed\\.safetensors.*{message}"):
        read_rwkv7(tmp_path / "changed.safetensors")


@pytest.mark.skipif(not TRAINED.exists(), reason="REGARD_RWKV7 names no trained model")
def test_the_trained_model_reverses_numbers_of_1_to_60_digits():
    file = read_rwkv7(TRAINED)
    assert sum(map(torch.numel, file.model.parameters())) == 30_252
    draw = random.Random(5)
    numbers = [[draw.randrange(10) for _ in range(count)] for count in range(1, 61)]
    tokens, model = regard.Tokens.of([[*digits, 10] for digits in numbers]), file.model
    with torch.inference_mode():
        logits, state, _ = model.step(model.start(rows=60, capacity=200), tokens.ids, tokens.lengths)
        written = [logits[torch.arange(60), tokens.lengths - 1].argmax(-1)]
        for _ in range(60):
            logits, state, _ = model.step(state, written[-1].unsqueeze(1))
            written.append(logits[:, -1].argmax(-1))
    for digits, row in zip(numbers, torch.stack(written, 1).tolist(), strict=True):
        assert row[:len(digits) + 1] == [*reversed(digits), 11]
    ids = [3, 1, 4, 1, 5, 10]
    np.testing.assert_allclose(model.double()(regard.Tokens.of([ids]))[0].detach().numpy(),
                               oracle_logits(load_file(TRAINED), ids, heads=2), rtol=1e-10, atol=1e-10)
