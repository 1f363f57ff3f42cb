"""The `repr` of every public object is short and says something: a test for each name of the public table."""

import re

import pytest
import texting
import torch
from tiny import reading
from trace_examples import translation

import regard
from regard.tasks.forecaster import Forecast
from regard.tasks.load import make_task
from regard.tasks.task import Task

LONG = "word " * 500
MANY = torch.arange(1, 1001)


def attention_inputs():
    torch.manual_seed(0)
    return torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8)


def watched():
    task = texting.translator()
    with regard.watch(task) as records:
        task("the dog", max_length=4)
    return records


class Halved(regard.Score):
    def __call__(self, query, key):
        return query @ key.transpose(-2, -1) / 2


class Doubled(regard.Normalizer):
    def __call__(self, scores):
        return scores.softmax(-1) * 2


# For each public name: what it makes, and what its `repr` must say.
OBJECTS = {
    "attend": (lambda: regard.attend, r"attend"),
    "attention_weights": (lambda: regard.attention_weights, r"attention_weights"),
    "explain": (lambda: regard.explain(*(torch.randn(2, 3, 4),) * 3), r"sdpa"),
    "Attention": (lambda: regard.Attention(16, heads=4, key_heads=2), r"16, heads=4, key_heads=2, score=scaled_dot"),
    "PlainAttention": (lambda: regard.PlainAttention(8), r"PlainAttention\(8, score=scaled_dot\)"),
    "BasicAttention": (lambda: regard.BasicAttention(8, score="additive"), r"8, score=Additive"),
    "AxialAttention": (lambda: regard.AxialAttention(8, heads=2, axis=-3), r"axis=-3"),
    "EvoformerBlock": (lambda: regard.EvoformerBlock(8, 8, msa_heads=1, pair_heads=1), r"TriangleAttention"),
    "AgentAwareAttention": (lambda: regard.AgentAwareAttention(8, heads=2),
                            r"8, heads=2, key_heads=2, score=AgentAware\(scaled_dot\)"),
    "AgentAware": (regard.AgentAware, r"^AgentAware\(scaled_dot\)$"),
    "SelfAttention": (lambda: regard.SelfAttention(regard.Attention(8, heads=2)), r"mask=Causal\(\)"),
    "Causal": (lambda: regard.Causal() & ~regard.Window(1, 2), r"^Causal\(\) & ~Window\(1, 2\)$"),
    "Padding": (lambda: regard.Padding(MANY), r'^Padding\(\[1, 2, 3.*…\], side="right"\)$'),
    "Window": (lambda: regard.Window(1, None), r"^Window\(1, None\)$"),
    "Packed": (lambda: regard.Packed(MANY), r"^Packed\(\[1, 2, 3.*…\]\)$"),
    "Placed": (lambda: regard.Placed(torch.tensor([3, 4])), r"^Placed\(\[3, 4\]\)$"),
    "Additive": (lambda: regard.Additive(torch.randn(4, 64)), r"^Additive\(weight \(4, 64\)\)$"),
    "Bilinear": (lambda: regard.Bilinear(torch.randn(4, 4)), r"^Bilinear\(weight \(4, 4\)\)$"),
    "Forecaster": (lambda: regard.task("tracks-tiny"), r"^Forecaster\(tracks, .* parameters, cpu\)$"),
    "Forecast": (lambda: Forecast("7", torch.zeros(2, 3, 2), torch.ones(2) / 2, 8), r"^Forecast\('7', 2 futures of 3"),
    "Score": (Halved, r"Halved"),
    "Normalizer": (Doubled, r"Doubled"),
    "Look": (lambda: regard.Look(*attention_inputs(), mask=regard.Causal()),
             r"^Look\(queries \(2, 4, 5, 8\), keys \(2, 4, 7, 8\), scaled_dot, softmax, Causal\(\)\)$"),
    "ALiBi": (lambda: regard.ALiBi.for_heads(4), r"^ALiBi\(slopes=\[0\.25"),
    "BucketedBias": (lambda: regard.BucketedBias(4), r"^BucketedBias\(heads=4, num_buckets=32"),
    "RelativeBias": (lambda: regard.RelativeBias(4, max_distance=3), r"^RelativeBias\(heads=4, max_distance=3\)$"),
    "Rotary": (lambda: regard.Rotary(8), r"^Rotary\(width=8, base=10000"),
    "Recurrence": (lambda: regard.Recurrence(8), r"8, layers=1"),
    "LSTMN": (lambda: regard.LSTMN(8), r"attention_width=8"),
    "Convolution": (lambda: regard.Convolution(8, kernel_size=3), r"^Convolution\(8, kernel_size=3"),
    "Block": (lambda: regard.Block(regard.Convolution(8, kernel_size=3), None, 8), r"Convolution\(8"),
    "Stack": (lambda: regard.Stack([regard.Block(regard.Convolution(8, kernel_size=3), None, 8)]), r"Convolution\(8"),
    "Tokens": (lambda: regard.Tokens(torch.zeros(1000, 1000, dtype=torch.long), MANY),
               r"^Tokens\(ids \(1000, 1000\), lengths \[1, 2, 3, 4, 5, 6, …\], padded right\)$"),
    "PackedTokens": (lambda: regard.PackedTokens.of([[1, 2], [3]]),
                     r"^PackedTokens\(ids \(1, 3\), lengths \[2, 1\]\)$"),
    "build": (lambda: regard.build("gpt-tiny", vocab_size=50), r"LanguageModel"),
    "train": (lambda: regard.train, r"train"),
    "CallbackEvent": (lambda: regard.CallbackEvent(3, 10, 0.5, 2.5, 1e-3, {"bleu": 30.0}), r"step=3.*'bleu': 30\.0"),
    "StopTraining": (regard.StopTraining, r"^StopTraining\(\)$"),
    "TrainingError": (lambda: regard.TrainingError("why"), r"^TrainingError\('why'\)$"),
    "ConfigError": (lambda: regard.ConfigError(["why"]), r"ConfigError\(.*why"),
    "load": (lambda: regard.load, r"load"),
    "task": (lambda: regard.task("gpt-tiny", vocab_size=50), r"^Completer\(language, [\d,]+ parameters, vocabulary 50"),
    "greedy": (lambda: texting.translator().translate_ids([[4, 5, 3]], max_length=3), r"^\[\[Hypothesis\(\["),
    "beam": (lambda: texting.translator().translate_ids([[4, 5, 3]], beams=2, max_length=3), r"^\[\[Hypothesis\(\["),
    "sample": (lambda: texting.translator().sample("the dog", max_length=3), r"^Translation\("),
    "mbr": (lambda: regard.mbr, r"mbr"),
    "with_cross": (lambda: regard.with_cross, r"with_cross"),
    "Hypothesis": (lambda: regard.Hypothesis(list(range(500)), [-0.5] * 501, -250.5, 3, torch.zeros(2, 4, 501, 9)),
                   r"^Hypothesis\(\[0, 1, .*, …\], 500 tokens, score -250\.5, end 3, cross \(2, 4, 501, 9\)\)$"),
    "heat_map": (lambda: regard.heat_map([[0.5]], ["a"], ["b"]), r"a"),
    "watch": (watched, r"^TaskRecords\(1 call of encoder\.0\.self, .*\)$"),
    "Trace": (translation, r"^Trace\(.*attention.*token"),
    "Translation": (lambda: regard.Translation(LONG, -1.25, tuple(range(500)), True,
                                               (regard.Translation("x", -2.0, (), False),)),
                    r"^Translation\('word word .*….*', score -1\.25, truncated, 1 alternative\)$"),
    "Completion": (lambda: regard.Completion(LONG, -1.25, tuple(range(500)), False, prompt=LONG),
                   r"^Completion\('word"),
    "Beam": (lambda: regard.Beam(nbest=2), r"^Beam\(beams=5, nbest=2\)$"),
    "Sampling": (lambda: regard.Sampling(top_p=0.9), r"^Sampling\(num_samples=1, top_p=0\.9, seed=0\)$"),
    "Glossary": (lambda: regard.Glossary({f"term {number} {LONG}": LONG for number in range(100)}),
                 r"^Glossary\(100 terms, 'term 0 .*…\)$"),
    "Alignment": (lambda: texting.translator().aligned("the dog", "le chien"),
                  r"^Alignment\('the dog' → 'le chien', links .*\)$"),
    "Influence": (lambda: texting.translator().influence("the dog", "le chien"),
                  r"^Influence\('the dog' → 'le chien .*'.*\)$"),
    "Translator": (texting.translator, r"^Translator\(encoder-decoder, [\d,]+ parameters, vocabulary 400, cpu\)$"),
    "Completer": (texting.completer, r"^Completer\(language, [\d,]+ parameters"),
    "Filler": (texting.filler, r"^Filler\(masked, [\d,]+ parameters"),
    "Classifier": (texting.classifier, r"^Classifier\(classifier, [\d,]+ parameters, vocabulary 400, 3 labels, cpu\)$"),
    "Labeller": (texting.tagger, r"^Labeller\(tagger, [\d,]+ parameters, vocabulary 400, 3 labels, cpu\)$"),
    "Embedder": (lambda: regard.task(reading()), r"^Embedder\(.*no tokenizer\)$"),
    "EncoderDecoder": (lambda: texting.translator().model, r"heads=2"),
    "LanguageModel": (lambda: texting.completer().model, r"heads="),
    "MaskedModel": (lambda: texting.filler().model, r"heads="),
    "Tagger": (lambda: texting.tagger().model, r"^Tagger\("),
    "SequenceClassifier": (lambda: texting.classifier().model, r"^SequenceClassifier\("),
    "ImageClassifier": (lambda: texting.seer().model, r"^ImageClassifier\("),
    "Seq2Seq": (lambda: regard.build("seq2seq", source_vocab_size=20, target_vocab_size=20, width=8, layers=1),
                r"(?s)^Seq2Seq\(.*RecurrentEncoder.*OneContextDecoder"),
    "RecurrentEncoder": (lambda: regard.build("seq2seq", source_vocab_size=20, target_vocab_size=20, width=8,
                                              layers=1).encoder, r"^RecurrentEncoder\("),
    "OneContextDecoder": (lambda: regard.build("seq2seq", source_vocab_size=20, target_vocab_size=20, width=8,
                                               layers=1).decoder, r"^OneContextDecoder\("),
    "AttendingDecoder": (lambda: regard.build("seq2seq-attention", source_vocab_size=20, target_vocab_size=20, width=8,
                                              layers=1).decoder, r"(?s)^AttendingDecoder\(.*score="),
    "RWKV4": (lambda: regard.RWKV4(8), r"8, direction=\"forward\""),
    "RWKV7": (lambda: regard.RWKV7(64), r"64, direction=\"forward\", head_width=64"),
    "ChannelMix": (lambda: regard.ChannelMix(8, 16), r"8, ffn_width=16"),
    "read_rwkv7": (lambda: regard.read_rwkv7, r"read_rwkv7"),
    "__version__": (lambda: regard.__version__, r"^'\d+\.\d+"),
}
RESULTS = {
    "filled text": (lambda: texting.filler().fill("the ___ sleeps"), r"^FilledText\('.*', 1 blank\)$"),
    "labels": (lambda: texting.classifier().classify("the dog"), r"^\[Label\('\w+', 0\.\d+\), "),
    "memory": (lambda: texting.translator().model.encode(regard.Tokens.of([[4, 5]])), r"^Memory\(states \(1, 2, "),
    "tokenizer": (lambda: texting.translator().tokenizer,
                  r"^PairTokenizer\(SentencePieceTokenizer\(400 ids\), joint\)$"),
    "call records": (lambda: watched().calls[0], r"^CallRecords\(encoder\.0\.self"),
    "calls": (lambda: watched().calls, r"^CallList\(1 call\)$"),
    "record": (lambda: watched()["decoder.0.cross"], r"^\w+\(.*\(2, "),
}


def test_every_public_name_has_an_example():
    assert set(OBJECTS) == set(regard.__all__)


@pytest.mark.parametrize("name", [*OBJECTS, *RESULTS])
def test_a_repr_is_short_and_says_something(name):
    make, pattern = {**OBJECTS, **RESULTS}[name]
    made = make()
    shown = repr(made)
    assert re.search(pattern, shown), shown
    if isinstance(made, torch.nn.Module):  # in torch's style: a line for each module
        assert max(map(len, shown.splitlines())) <= 120
        return
    assert len(shown.splitlines()) <= 2
    assert len(shown) <= 400
    if not callable(made) or isinstance(made, Task):
        assert " at 0x" not in shown


def test_a_task_without_a_tokenizer_says_so():
    task = texting.translator()
    assert repr(make_task(task.model, task.config, task.special)).endswith("cpu, no tokenizer)")


def test_str_is_the_text():
    assert str(texting.translator()("the dog", max_length=3)) == texting.translator().translate("the dog",
                                                                                              max_length=3).text
    filled = texting.filler()("the ___ sleeps")
    assert str(filled) == filled.text
    assert [str(label) for label in texting.classifier()("the dog")] == [
        label.name for label in texting.classifier().classify("the dog")]
