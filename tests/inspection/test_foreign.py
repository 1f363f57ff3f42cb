"""Attention of PyTorch and Hugging Face modules is recorded; results and fast paths stay the same."""

import threading
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported

import regard
from regard.inspection.foreign import FUSED, SOFTMAX, ListeningMode, listen_by_name, running_module

IDS = torch.tensor([[5, 7, 3, 9, 2, 8, 4], [6, 4, 8, 3, 7, 0, 0]])
MASK = (IDS != 0).long()
SMALL = {"vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
NAMES = {
    "bert": ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"],
    "gpt2": ["transformer.h.0.attn", "transformer.h.1.attn"],
    "llama": ["model.layers.0.self_attn", "model.layers.1.self_attn"],
    "marian": ["model.encoder.layers.0.self_attn", "model.encoder.layers.1.self_attn",
               "model.decoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn",
               "model.decoder.layers.1.self_attn", "model.decoder.layers.1.encoder_attn"],
}
GROUP = pytest.mark.xdist_group("transformers")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def made(transformers, name, attention):
    """A small model, in evaluation mode, with weights that are large enough for looks to differ."""
    inner = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
    kinds = {
        "bert": (transformers.BertModel, transformers.BertConfig, inner),
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, {"n_embd": 16, "n_layer": 2, "n_head": 4}),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, inner | {"num_key_value_heads": 2}),
        "marian": (transformers.MarianMTModel, transformers.MarianConfig,
                   {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
                    "decoder_start_token_id": 0, "forced_eos_token_id": None}),
    }
    model, config, options = kinds[name]
    torch.manual_seed(0)
    one = model._from_config(config(**SMALL, **options), attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in one.parameters():
            if parameter.dim() == 2:
                parameter.mul_(15)
    return one


@GROUP
@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@torch.no_grad()
def test_weights_are_those_of_the_eager_form(transformers, name, mask):
    fused, eager = (made(transformers, name, kind) for kind in ("sdpa", "eager"))
    given = {"input_ids": IDS, "attention_mask": mask}
    if name == "marian":
        given["decoder_input_ids"] = IDS[:, :4]
    records = {}
    for one in (fused, eager):
        plain = one(**given)[0]
        with regard.watch(one) as records[one]:
            watched = one(**given)[0]
        assert torch.equal(watched, plain)
        assert records[one].names() == NAMES[name]
    told = eager(**given, output_attentions=True)
    if name == "marian":
        of_decoder = zip(told.decoder_attentions, told.cross_attentions, strict=True)
        weights = [*told.encoder_attentions, *(one for pair in of_decoder for one in pair)]
    else:
        weights = told.attentions
    for place, expected in zip(NAMES[name], weights, strict=True):
        assert torch.equal(records[eager][place].weights(), expected)
        assert expected.std() > 0.05
        there = 7 if mask is None or ("marian" in name and "encoder.layers" not in place) else 5
        torch.testing.assert_close(records[fused][place].weights()[0], expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(records[fused][place].weights()[1, :, :there], expected[1, :, :there], rtol=1e-5,
                                   atol=1e-5)


def assert_rows_are_without_padding(model):
    """The second row of the batch is what it is alone; what was records of the batch comes back."""
    with regard.watch(model) as together:
        model(input_ids=IDS, attention_mask=MASK)
    with regard.watch(model) as alone:
        model(input_ids=IDS[1:, :5])
    for one, other in zip(together.row(1).values(), alone.row(0).values(), strict=True):
        torch.testing.assert_close(one.weights(), other.weights(), rtol=1e-4, atol=1e-5)
    return together


@GROUP
@torch.no_grad()
def test_rows_of_a_batch_are_without_padding(transformers):
    model = made(transformers, "llama", "sdpa")
    together = assert_rows_are_without_padding(model)
    assert together.trace(1, text=list("abcde")).sides["text"].tokens == ("a", "b", "c", "d", "e")


@GROUP
@torch.no_grad()
def test_rows_are_without_padding_where_the_mask_is_added(transformers):
    config = transformers.T5Config(vocab_size=20, d_model=16, d_kv=4, d_ff=20, num_layers=2, num_heads=4)
    model = transformers.T5EncoderModel._from_config(config, attn_implementation="sdpa").eval()
    assert_rows_are_without_padding(model)


@GROUP
@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
@torch.no_grad()
def test_generated_text_is_one_map(transformers, name):
    model = made(transformers, name, "sdpa")
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
    plain = model.generate(IDS[:1], **options)
    with regard.watch(model) as steps:
        written = model.generate(IDS[:1], **options)
    assert torch.equal(written, plain)
    given = {"input_ids": IDS[:1], "decoder_input_ids": written[:, :-1]} if name == "marian" else {
        "input_ids": written[:, :-1]}
    with regard.watch(model) as whole:
        model(**given)
    assert len(steps.calls) == 1
    for place in NAMES[name]:
        torch.testing.assert_close(steps[place].weights(), whole[place].weights(), rtol=1e-4, atol=1e-5)


class Own(nn.Module):
    """A module of somebody's own around torch's kernel."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.randn(3, 5)},
                                     {"enable_gqa": True}], ids=["plain", "causal", "scale", "added", "grouped"])
def test_any_module_that_calls_the_kernel(options):
    heads = 2 if "enable_gqa" in options else 4
    q, k, eye = torch.randn(2, 4, 3, 8), torch.randn(2, heads, 5, 8), torch.eye(5).expand(2, heads, 5, 5)
    model = nn.Sequential()
    model.add_module("own", Own(**options))
    with regard.watch(model) as records:
        model.own(q, k, eye)
    assert records.names() == ["own"]
    torch.testing.assert_close(records["own"].weights(), Own(**options)(q, k, eye))  # values of 1 give the weights


def test_an_exception_inside_leaves_no_hook():
    model = nn.Sequential(nn.Linear(4, 4), Own())
    with pytest.raises(TypeError), regard.watch(model) as records:
        model(torch.randn(2, 4))
    assert records.names() == []
    assert not nn.modules.module._has_any_global_hook()


def test_a_module_that_failed_is_left():
    model = nn.ModuleDict({"own": Own(), "second": Own()})
    q = torch.randn(1, 2, 3, 4)
    with regard.watch(model) as records:
        with pytest.raises(TypeError):
            model["own"](q)
        model["second"](q, q, q)
    assert records.names() == ["second"]
    assert not nn.modules.module._has_any_global_hook()


class Learned(nn.Module):
    """Queries and a bias that are trained."""

    def __init__(self):
        super().__init__()
        self.query, self.bias = nn.Parameter(torch.randn(1, 2, 3, 4)), nn.Parameter(torch.randn(3, 5))

    def forward(self, k):
        return F.scaled_dot_product_attention(self.query, k, k, attn_mask=self.bias)


@pytest.mark.parametrize("part", ["bias", "query"])
@torch.no_grad()
def test_records_of_foreign_modules_stay_when_training_continues(part):
    model = nn.ModuleDict({"own": Learned()})
    with regard.watch(model) as records:
        model["own"](torch.randn(1, 2, 5, 4))
        getattr(model["own"], part).mul_(3)
        model["own"](torch.randn(1, 2, 5, 4))
    before = [call["own"].weights().clone() for call in records.calls]
    getattr(model["own"], part).mul_(3)
    assert all(torch.equal(call["own"].weights(), one) for call, one in zip(records.calls, before, strict=True))


@torch.no_grad()
def test_a_mask_of_all_layers_is_kept_once():
    mask = torch.rand(1, 1, 64, 65) > 0.5
    mask[..., 0] = True
    model = nn.ModuleList([Masked() for _ in range(6)])
    x = torch.randn(1, 1, 64, 1)
    with regard.watch(model, limit=6 * 2 * 64 * 4 + 64 * 64) as records:  # queries and keys of six, and one mask
        for layer in model:
            layer(x, mask)
    kept = [records[str(number)].mask.tensor for number in range(6)]
    assert len({one.data_ptr() for one in kept}) == 1
    before = records["0"].weights().clone()
    mask.fill_(True)
    assert torch.equal(records["0"].weights(), before)


class Masked(nn.Module):
    """A layer that cuts the mask to its keys, as those of Hugging Face do."""

    def forward(self, x, mask):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask[..., :x.shape[-2]])


class Mixed(nn.Module):
    """torch's own attention, and one that calls the kernel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.MultiheadAttention(8, 2, batch_first=True), Own()

    def forward(self, x):
        x = self.first(x, x, x, need_weights=False)[0]
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return self.second(heads, heads, heads)


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_a_model_with_attentions_of_both_kinds(training):
    model, x = Mixed().train(training), torch.randn(2, 3, 8)
    plain = model(x)
    with regard.watch(model) as records:
        assert torch.equal(model(x), plain)
    assert records.names() == ["first", "second"]
    assert len(records.calls) == 1
    torch.testing.assert_close(records["first"].weights(), model.first(x, x, x, average_attn_weights=False)[1])


@torch.no_grad()
def test_a_run_in_another_thread_has_its_own_modules():
    model = nn.ModuleDict({"own": Own(), "other": Meets()})
    q = torch.randn(1, 2, 3, 4)
    with regard.watch(nn.Sequential(nn.MultiheadAttention(4, 1), model)) as records:
        thread = threading.Thread(target=model["other"], args=(q,))
        thread.start()
        model["other"].began.wait(10)
        model["own"](q, q, q)
        model["other"].goes_on.set()
        thread.join()
    assert sorted(records.names()) == ["1.other", "1.own"]


class Meets(nn.Module):
    """Begins, and goes on when it is told to."""

    def __init__(self):
        super().__init__()
        self.began, self.goes_on = threading.Event(), threading.Event()

    def forward(self, q):
        self.began.set()
        self.goes_on.wait(10)
        return F.scaled_dot_product_attention(q, q, q)


@GROUP
@pytest.mark.parametrize("name", sorted(NAMES))
@torch.no_grad()
def test_models_of_hugging_face_run_without_a_mode(transformers, name, monkeypatch):
    monkeypatch.setattr("regard.inspection.foreign.ListeningMode", None)  # it slows every operation down
    model = made(transformers, name, "sdpa")
    with regard.watch(model) as records:
        model(input_ids=IDS, **({"decoder_input_ids": IDS} if name == "marian" else {}))
    assert records.names() == NAMES[name]


@GROUP
@torch.no_grad()
def test_a_model_that_calls_softmax_as_a_method(transformers):
    config = transformers.TimesformerConfig(image_size=8, patch_size=4, num_frames=2, hidden_size=16,
                                            num_hidden_layers=1, num_attention_heads=2, intermediate_size=20)
    model = transformers.TimesformerModel(config).eval()
    with regard.watch(model) as records:
        told = model(torch.randn(1, 2, 3, 8, 8), output_attentions=True).attentions[0]
    assert torch.equal(records["encoder.layer.0.attention.attention"].weights(), told)


@pytest.mark.parametrize("model", [Mixed(), nn.Sequential(Own())], ids=["by name", "by mode"])
@torch.no_grad()
def test_compiled_modules_run_and_are_not_recorded(model):
    kernel = model.second if isinstance(model, Mixed) else model[0]
    x = torch.randn(1, 2, 3, 4)
    run = torch.compile(lambda x: kernel(x, x, x), backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(x)
        with regard.watch(model) as records:
            torch.testing.assert_close(run(x), expected)
        torch.testing.assert_close(run(x), expected)
    assert records.names() == []


X = torch.randn(1, 2, 3, 4)
CALLS = {
    "fused": (FUSED, lambda: F.scaled_dot_product_attention(X, X, X)),
    "of functional": (SOFTMAX, lambda: F.softmax(X, dim=-1)),
    "of torch": (SOFTMAX, lambda: torch.softmax(input=X, dim=-1)),
    "of a module": (SOFTMAX, lambda: nn.Softmax(dim=-1)(X)),
    "method": (SOFTMAX, lambda: X.softmax(-1)),
    "imported": (FUSED, lambda: imported(X, X, X)),
}
OWN_NAME = ("imported", "method")


def functions():
    return F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("way", [listen_by_name, ListeningMode])
def test_every_call_is_heard_once(way, call):
    name, run = CALLS[call]
    plain, before, told = run(), functions(), []
    with way(lambda *one: told.append(one)):
        result = run()
    assert functions() == before
    assert torch.equal(result, plain)
    expected = [] if way is listen_by_name and call in OWN_NAME else [name]
    assert [one[0] for one in told] == expected
    for one in told:
        assert one[3] is result
    run()
    assert len(told) == len(expected)


def test_listeners_end_in_any_order():
    before, first, second = functions(), [], []
    one, other = listen_by_name(lambda *told: first.append(told)), listen_by_name(lambda *told: second.append(told))
    one.__enter__()
    other.__enter__()
    F.softmax(X, dim=-1)
    one.__exit__(None, None, None)
    F.softmax(X, dim=-1)
    other.__exit__(None, None, None)
    F.softmax(X, dim=-1)
    assert (len(first), len(second)) == (1, 2)
    assert functions() == before


def test_an_exception_puts_everything_back():
    before = functions()
    with pytest.raises(RuntimeError), listen_by_name(lambda *told: None):
        raise RuntimeError
    assert functions() == before


class Asks(nn.Module):
    """A module that asks, below and above others, which one runs."""

    def __init__(self, known, inner=None):
        super().__init__()
        self.known, self.inner, self.found = known, inner, []

    def forward(self):
        self.found.append(running_module(self.known))
        if self.inner is not None:
            self.inner()
        self.found.append(running_module(self.known))


def test_the_innermost_of_the_modules_that_are_known():
    known: set[int] = set()
    stranger = Asks(known)
    inner = Asks(known, stranger)
    outer = Asks(known, inner)
    known |= {id(inner), id(outer)}
    outer()
    assert outer.found == [outer, outer]
    assert inner.found == stranger.found == [inner, inner]
    assert running_module(known) is None


def test_threads_have_their_own_running_modules():
    known: set[int] = set()
    found = []

    class Waits(nn.Module):
        def forward(self):
            thread = threading.Thread(target=lambda: found.append(running_module(known)))
            thread.start()
            thread.join()

    module = Waits()
    known.add(id(module))
    module()
    assert found == [None]


B, H, n, N, E = 2, 2, 4, 6, 8
PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
LAYERS = {"plain": {}, "without bias": {"bias": False}, "bias of keys": {"add_bias_kv": True},
          "zero": {"add_zero_attn": True}, "other keys": {"kdim": 5, "vdim": 3}}
HIDDEN_MULTIHEAD = torch.zeros(n, N, dtype=torch.bool)
HIDDEN_MULTIHEAD[0, 1:] = HIDDEN_MULTIHEAD[2, ::2] = True
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "hidden": {"attn_mask": HIDDEN_MULTIHEAD},
    "added": {"attn_mask": torch.linspace(-2, 2, n * N).view(n, N)},
    "a head": {"attn_mask": torch.linspace(-2, 2, B * H * n * N).view(B * H, n, N).cos()},
    "both": {"attn_mask": HIDDEN_MULTIHEAD, "key_padding_mask": PADDING},
    "both added": {"attn_mask": torch.ones(n, N).tril(), "key_padding_mask": torch.where(PADDING, -torch.inf, 0.0)},
}


def scaled(module):
    """With large weights, so that no look is like another."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.eval()


@pytest.mark.parametrize("layer", sorted(LAYERS))
@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_weights_equal_those_the_module_returns(layer, mask, batch_first):
    module = scaled(nn.MultiheadAttention(E, H, batch_first=batch_first, **LAYERS[layer]))
    query, key, value = torch.randn(B, n, E), torch.randn(B, N, module.kdim), torch.randn(B, N, module.vdim)
    given = [one if batch_first else one.transpose(0, 1) for one in (query, key, value)]
    for need in (False, True):
        plain, told = module(*given, **MASKS[mask], need_weights=need, average_attn_weights=False)
        with regard.watch(module) as records:
            watched, _ = module(*given, **MASKS[mask], need_weights=need, average_attn_weights=False)
        assert torch.equal(watched, plain)
    torch.testing.assert_close(records["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    assert told.std() > 0.05


@torch.no_grad()
def test_one_sequence_without_a_batch_and_arguments_by_place():
    module, x = scaled(nn.MultiheadAttention(E, H)), torch.randn(n, E)
    _, told = module(x, x, x, None, True, None, False)
    with regard.watch(module) as records:
        module(x, x, x, None, True, None, False)
    torch.testing.assert_close(records["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(records.row(0)["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    assert records.trace().attentions[0].kind == "self"


def told(encoder, x, **masks):
    """The weights of all layers, from the attention modules themselves, which tell them off the fast path."""
    found, forward = [], nn.MultiheadAttention.forward

    def telling(module, *args, **kwargs):
        result = forward(module, *args, **(kwargs | {"need_weights": True, "average_attn_weights": False}))
        found.append(result[1])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.MultiheadAttention, "forward", telling)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            encoder(x, **masks)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return found


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_the_encoder_of_torch_stays_on_its_fast_path(norm_first, nested, batch_first, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of the paths that it does not take, and of nested tensors
        layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=batch_first, norm_first=norm_first)
        encoder = scaled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))
        x = torch.randn(B, N, E) if batch_first else torch.randn(N, B, E)
        fused, used = [], torch._transformer_encoder_layer_fwd
        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: fused.append(1) or used(*given))
        causal = nn.Transformer.generate_square_subsequent_mask(N)
        for masks in ({}, {"src_key_padding_mask": PADDING}, {"mask": causal, "is_causal": True}):
            plain, before = encoder(x, **masks), len(fused)
            with regard.watch(encoder) as records:
                watched = encoder(x, **masks)
            assert torch.equal(watched, plain)
            assert len(fused) == 2 * before == (4 if batch_first else 0)
            fused.clear()
            assert records.names() == ["layers.0.self_attn", "layers.1.self_attn"]
            for name, weights in zip(records.names(), told(encoder, x, **masks), strict=True):
                for row, there in enumerate((6, 4 if "src_key_padding_mask" in masks else 6)):
                    look = records.row(row)[name].weights()
                    torch.testing.assert_close(look, weights[row, :, :there, :there], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_transformer_of_torch_becomes_a_trace(tmp_path):
    model = scaled(nn.Transformer(E, H, 1, 1, 16, batch_first=True))
    source, target = torch.randn(1, N, E), torch.randn(1, n, E)
    with regard.watch(model) as records:
        model(source, target)
    records.save(tmp_path / "a.safetensors", target=list("abcd"))
    trace = regard.Trace.load(tmp_path / "a.safetensors")
    assert [(one.name, one.queries, one.keys, one.kind) for one in trace.attentions] == [
        ("encoder.layers.0.self_attn", "source", "source", "self"),
        ("decoder.layers.0.self_attn", "target", "target", "self"),
        ("decoder.layers.0.multihead_attn", "target", "source", "cross")]


def test_training_goes_on_while_it_is_watched_and_what_was_seen_stays():
    module, x = nn.MultiheadAttention(E, H, dropout=0.5), torch.randn(N, B, E)
    with regard.watch(module) as records:
        output, _ = module(x, x, x)
    before = records["attention"].weights()
    output.sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(parameter.grad)
    x.zero_()
    with regard.watch(module) as after:
        module(x, x, x)
    assert torch.equal(records["attention"].weights(), before)
    assert not torch.allclose(after["attention"].weights(), before)


def test_only_the_watched_module_is_seen_and_the_limit_holds():
    one, other, x = nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H), torch.randn(N, B, E)
    watch = regard.watch(one, limit=N * B * E * 4)
    records = watch.__enter__()
    other(x, x, x)
    one(x, x, x)
    one(x, x, x)
    with pytest.warns(RuntimeWarning, match=r'"attention" \(1 of 2\)'):
        watch.__exit__(None, None, None)
    assert len(records.calls) == 2
    assert not nn.modules.module._has_any_global_hook()
