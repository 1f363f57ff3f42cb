"""What the tests of other people's models share: the library that wrote them, quiet and offline, and models of it."""

import os

import pytest
import torch

from regard.storage.huggingface.conversion import read_model, write_model
from regard.tokens import Tokens


@pytest.fixture(scope="session")
def peer():
    """The library `transformers`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.fixture
def saved(tmp_path):
    """Saves a model of theirs with random numbers in all of it, biases and norms too, and gives the folder."""
    def save(model):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            biases = [buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"]
            for tensor in [*(learned for learned in model.parameters() if learned.requires_grad), *biases]:
                mean = 1.0 if tensor.dim() == 1 and bool((tensor == 1).all()) else 0.0
                tensor.copy_(mean + 0.2 * torch.randn(tensor.shape, generator=generator))
        model.eval().save_pretrained(tmp_path / "theirs")
        return tmp_path / "theirs"

    return save


@pytest.fixture
def assert_there_and_back(tmp_path, peer):
    """Reads a folder, writes it, reads that and lets them load it: all equal to the bit. Gives what was read."""
    def walk(folder, model, missing=()):
        foreign = read_model(folder)
        write_model(tmp_path / "ours", foreign.config, foreign.special, foreign.tensors, labels=foreign.labels,
                    longest=foreign.longest)
        again = read_model(tmp_path / "ours")
        assert (again.config, again.special, again.labels, again.longest) == (
            foreign.config, foreign.special, foreign.labels, foreign.longest)
        assert again.tensors.keys() == foreign.tensors.keys()
        assert all(torch.equal(again.tensors[name], tensor) for name, tensor in foreign.tensors.items())
        theirs, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert {*info["missing_keys"]} == {*missing}
        assert not info["unexpected_keys"]
        assert not info["mismatched_keys"]
        before, after = model.state_dict(), theirs.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before if name not in missing)
        return foreign

    return walk


@pytest.fixture
def check_greedy():
    """Compares what they generate with one step after another of ours, up to a near-tie."""
    def check(generated, model, memory, prompts, lengths):
        state = model.start(memory, rows=len(prompts), capacity=prompts.shape[1] + generated.shape[1])
        step = model.step(state, prompts, lengths)
        logits = step.logits[torch.arange(len(prompts)), lengths - 1]
        compared, near = 0, torch.zeros(len(prompts), dtype=torch.bool)
        for column in generated.unbind(1):
            best = logits.topk(2).values
            near |= best[:, 0] - best[:, 1] < 1e-4
            assert torch.equal(logits.argmax(-1)[~near], column[~near])
            compared += int((~near).sum())
            step = model.step(step.state, column.unsqueeze(1))
            logits = step.logits[:, -1]
        assert compared > 0.8 * generated.numel()

    return check


@pytest.fixture
def check_translator(check_greedy):
    """Compares states, logits and greedy generation of an encoder-decoder with theirs, on rows of unequal lengths."""
    @torch.no_grad()
    def check(foreign, theirs, padding):
        source, target = (Tokens.of([torch.randint(2, 49, (length,)) for length in lengths], padding=padding)
                          for lengths in ((8, 5, 1), (6, 2, 6)))
        masks = [tokens.present.matrix(1, tokens.ids.shape[1]).squeeze(-2) for tokens in (source, target)]
        expected = theirs(input_ids=source.ids, attention_mask=masks[0].long(), decoder_input_ids=target.ids,
                          decoder_attention_mask=masks[1].long())
        model = foreign.build()
        memory = model.encode(source)
        for mine, other, there in ((memory.states, expected.encoder_last_hidden_state, masks[0]),
                                   (model.decode(target, memory), expected.logits, masks[1])):
            torch.testing.assert_close(mine[there], other[there], rtol=0, atol=1e-5)
        generated = theirs.generate(source.ids, attention_mask=masks[0].long(), do_sample=False, num_beams=1,
                                    max_new_tokens=12, min_new_tokens=12, eos_token_id=None)
        check_greedy(generated[:, 1:], model, memory, generated[:, :1], torch.ones(3, dtype=torch.long))

    return check
