"""What the heads of tasks do: the cost against models whose heads are really zero, the roles against traces."""

import copy
import functools
import json
from dataclasses import replace

import pytest
import texting
import torch
from refusals import assert_named
from tiny import Seq2SeqAttentionConfig, built, seq2seq

from regard.attention.layer import Attention
from regard.data import phrasebook
from regard.data.tokenizer.interface import find_units
from regard.inspection.recorder import find_attention_modules
from regard.reference import statistics
from regard.tasks.evaluation import evaluate_classifier, evaluate_labeller, masked_loss, stream_loss, translation_loss
from regard.tasks.heads import HeadReport, measure_heads, ratio_of_sums, read_heads
from regard.tasks.load import make_task
from regard.tasks.traces import trace_forced, trace_input

PAIRS = [("the big dog sleeps.", "le grand chien dort."), ("the dog", "le chien"), ("Emma sees the cat .", "Emma ."),
         ("the cat sees the dog and the cat.", "le chat voit le chien et le chat.")]
TEXTS = [source for source, _ in PAIRS]


@functools.cache
def recurrent():
    """A recurrent translator with attention."""
    both = texting.joint()
    config = replace(seq2seq(attention=Seq2SeqAttentionConfig()), source_vocab_size=both.source.size,
                     target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both)


def examples(task, texts=TEXTS):
    return [(text, task.label_names()[number % 2]) for number, text in enumerate(texts)]


def tokens(task):
    return [(text.split(), [task.label_names()[number % 2] for number, _ in enumerate(text.split())])
            for text in TEXTS]


def labelled_loss(task, data):
    return evaluate_labeller(task, data).loss


CASES = {
    "translator": (texting.translator, lambda task: PAIRS, lambda task, data: translation_loss(task, data).mean),
    "separate": (lambda: texting.translator(pair=texting.separate), lambda task: PAIRS,
                 lambda task, data: translation_loss(task, data).mean),
    "completer": (texting.completer, lambda task: TEXTS[3:],
                  lambda task, data: stream_loss(task, task.text_tokenizer().encode(data[0])).mean),
    "filler": (texting.filler, lambda task: TEXTS, lambda task, data: masked_loss(task, data).mean),
    "classifier": (texting.classifier, examples,
                   lambda task, data: evaluate_classifier(task, *zip(*data, strict=True)).loss),
    "labeller": (texting.tagger, tokens, labelled_loss),
}


def without(task, name, head):
    """The task with a model one of whose heads has no weights behind it."""
    model = copy.deepcopy(task.model)
    [layer] = [one.module for one in find_attention_modules(model) if one.name == name]
    assert isinstance(layer, Attention)
    width = layer.output.in_features // layer.heads
    with torch.no_grad():
        layer.output.weight[:, width * head:width * (head + 1)] = 0.0
    return make_task(model, task.config, tokenizer=task.tokenizer, labels=task.labels, record=task.record)


@pytest.mark.parametrize("name", CASES)
def test_the_cost_is_that_of_a_model_without_the_head(name):
    make, data_of, loss = CASES[name]
    task = make()
    data = data_of(task)
    found = task.heads(data)
    assert found.loss == pytest.approx(loss(task, data), rel=1e-5)
    modules = find_attention_modules(task.model)
    assert [(one.attention, one.head) for one in found.heads] == [
        (module.name, head) for module in modules for head in range(module.module.heads)]
    for one in found.heads:
        want = loss(without(task, one.attention, one.head), data) - found.loss
        assert one.cost == pytest.approx(want, abs=2e-5 * max(1.0, found.loss))
    assert any(abs(one.cost) > 1e-4 for one in found.heads)


def test_the_error_of_a_cost_is_that_of_its_sentences():
    """Against the spread of the cost over draws of the sentences, with replacement (bootstrap)."""
    values, counts = torch.randn(40, dtype=torch.float64) + 1.0, torch.randint(3, 30, (40,)).double()
    ratio, error = ratio_of_sums(values * counts, counts)
    assert ratio == pytest.approx(float((values * counts).sum() / counts.sum()))
    drawn = torch.randint(0, 40, (4000, 40))
    ratios = (values * counts)[drawn].sum(-1) / counts[drawn].sum(-1)
    assert error == pytest.approx(float(ratios.std()), rel=0.1)
    assert ratio_of_sums(torch.tensor([3.0]), torch.tensor([2.0])) == (1.5, 0.0)
    task = texting.translator()
    alone = [task.heads([pair]) for pair in PAIRS]
    for number, one in enumerate(task.heads(PAIRS).heads):
        rises = torch.tensor([each.heads[number].cost * each.labels for each in alone], dtype=torch.float64)
        want = ratio_of_sums(rises, torch.tensor([each.labels for each in alone], dtype=torch.float64))
        assert (one.cost, one.cost_error) == pytest.approx(want, abs=1e-5)


def test_roles_of_a_translator_are_those_of_its_traces():
    task = texting.translator()
    found = {(one.attention, one.head): one.roles for one in task.heads(PAIRS).heads}
    traces = [trace_forced(task, *pair) for pair in PAIRS]
    for number, attention in enumerate(traces[0].attentions):
        maps = [trace.attentions[number].look.weights() for trace in traces]
        rows, columns = ([trace.sides["read" if side == "target" and attention.kind == "self" else side].tokens
                          for trace in traces] for side in (attention.queries, attention.keys))
        visible = [torch.ones_like(one[0]).tril() if attention.queries == "target" and attention.kind == "self"
                   else torch.ones_like(one[0]) for one in maps]
        for head in range(attention.heads):
            for role in ("first", "in_order" if attention.kind == "cross" else "previous"):
                want, _, _ = statistics.role_score(role, [one[head] for one in maps], visible, rows, columns,
                                                   [[False]] * len(maps), [set()] * len(maps))
                assert found[attention.name, head][role] == pytest.approx(want, abs=1e-5)


def test_a_recurrent_decoder_has_one_head():
    task = recurrent()
    [one] = task.heads(PAIRS).heads
    assert (one.attention, one.kind, one.head) == ("decoder.cross", "cross", 0)
    traces = [trace_forced(task, *pair) for pair in PAIRS]
    maps = [trace.attentions[0].look.weights()[0] for trace in traces]
    want, _, _ = statistics.role_score("in_order", maps, [torch.ones_like(one) for one in maps],
                                       [trace.sides["target"].tokens for trace in traces],
                                       [trace.sides["source"].tokens for trace in traces], [[]] * 4, [set()] * 4)
    assert one.roles["in_order"] == pytest.approx(want, abs=1e-5)


def test_separators_are_special_tokens_and_signs():
    task = texting.classifier()
    text = TEXTS[3]
    trace = trace_input(task, text)
    pieces = trace.sides["text"].tokens
    ids = task.encode_texts([text])[0]
    flags = [id_ in task.special.ids() or not any(map(str.isalnum, piece))
             for id_, piece in zip(ids, pieces, strict=True)]
    assert 0 < sum(flags) < len(flags)
    found = task.heads(examples(task, [text])).heads
    for one in found:
        [weights] = [each.look.weights()[one.head] for each in trace.attentions if each.name == one.attention]
        want, _, _ = statistics.role_score("separators", [weights], [torch.ones_like(weights)], [pieces], [pieces],
                                           [flags], [set()])
        assert one.roles["separators"] == pytest.approx(want, abs=1e-5)


def test_gold_links_join_the_tokens_of_linked_words():
    task, [pair] = texting.translator(), [*phrasebook.pairs(1, seed=3)]
    both = task.pair_tokenizer()
    trace = trace_forced(task, pair.source, pair.target)
    links = set()
    for source, target in pair.alignment:
        sides = ((both.source.spans(pair.source), pair.source_offsets[source]),
                 (both.target.spans(pair.target), pair.target_offsets[target]))
        columns, rows = ([number for number, span in enumerate(spans) if set(range(*span)) & set(range(*word))]
                         for spans, word in sides)
        links |= {(row, column) for row in rows for column in columns}
    assert links
    plain = [(pair.source, pair.target, pair.alignment)]
    by_units = len(find_units(pair.source)) == len(pair.source_words)
    for data in ([pair], *([plain] if by_units else [])):
        for one in task.heads(data).heads:
            if one.kind == "cross":
                [weights] = [each.look.weights()[one.head] for each in trace.attentions if each.name == one.attention]
                want, _, _ = statistics.role_score("gold", [weights], [torch.ones_like(weights)],
                                                   [trace.sides["target"].tokens], [trace.sides["source"].tokens],
                                                   [[]], [links])
                assert one.roles["gold"] == pytest.approx(want, abs=1e-5)
    assert "gold" not in task.heads([(pair.source, pair.target)]).heads[-1].roles


def test_a_control_token_before_the_source_moves_the_links_and_is_a_separator():
    task = texting.translator(pair=texting.several).into("fr")
    [pair] = [*phrasebook.pairs(1, seed=3)]
    trace = trace_forced(task, pair.source, pair.target)
    source = trace.sides["source"].tokens
    assert source[0] == "<2fr>"
    both = task.pair_tokenizer()
    columns = [(start, end) for start, end in both.source.spans(pair.source)]
    links = {(row, 1 + column) for one, other in pair.alignment
             for row, span in enumerate(both.target.spans(pair.target)) for column, (start, end) in enumerate(columns)
             if set(range(*span)) & set(range(*pair.target_offsets[other]))
             and set(range(start, end)) & set(range(*pair.source_offsets[one]))}
    flags = [number == 0 or token == "</s>" or not any(map(str.isalnum, token)) for number, token in enumerate(source)]
    for one in task.heads([pair]).heads:
        if one.kind == "cross":
            [weights] = [each.look.weights()[one.head] for each in trace.attentions if each.name == one.attention]
            for role in ("gold", "separators"):
                want, _, _ = statistics.role_score(role, [weights], [torch.ones_like(weights)],
                                                   [trace.sides["target"].tokens], [source], [flags], [links])
                assert one.roles[role] == pytest.approx(want, abs=1e-5)


def test_images_have_heads():
    task = texting.seer()
    images = torch.randint(0, 255, (6, 1, 8, 8), dtype=torch.uint8)
    labels = [task.label_names()[number % 2] for number in range(6)]
    found = task.heads((images, labels))
    assert found.loss == pytest.approx(evaluate_classifier(task, images, labels).loss, rel=1e-5)
    assert {"itself", "first"} <= set(found.heads[0].roles)
    assert "same" not in found.heads[0].roles


def test_only_the_first_sentences_are_read_and_long_ones_are_skipped():
    task = texting.translator()
    assert task.heads(PAIRS, sentences=2) == task.heads(PAIRS[:2])
    labeller = texting.character_tagger(("C", "E", "H"), "learned")
    long = "MKVLACDE" * 10
    found = labeller.heads([(list("MKV"), list("CEH")), (list(long), ["C"] * len(long))])
    assert (found.sentences, found.skipped, found.labels) == (1, 1, 3)


def test_a_report_is_stored_with_its_model(tmp_path):
    task = texting.translator()
    task.save(tmp_path / "model")
    assert read_heads(tmp_path / "model") is None
    found = measure_heads(task, PAIRS, name="pairs.tsv")
    path = found.save(tmp_path / "model")
    assert path.name == "heads.json"
    assert read_heads(tmp_path / "model") == found
    table = json.loads(path.read_text("utf-8"))
    assert (table["format"], table["data"], table["sentences"]) == ("regard heads 1", "pairs.tsv", len(PAIRS))
    assert [one["name"] for one in table["attentions"]] == list(dict.fromkeys(one.attention for one in found.heads))
    task.save(tmp_path / "model")  # the same weights: the report stays valid
    assert read_heads(tmp_path / "model") == found
    with torch.no_grad():
        other = copy.deepcopy(task.model)
        next(other.parameters()).add_(1.0)
    make_task(other, task.config, tokenizer=task.tokenizer).save(tmp_path / "model")
    assert read_heads(tmp_path / "model") is None


def test_a_report_in_the_form_of_a_trace():
    found = texting.translator().heads(PAIRS, sentences=2)
    traced = found.traced()
    assert (traced.data, traced.sentences, traced.loss) == (found.data, 2, found.loss)
    heads = iter(found.heads)
    for one in traced.attentions:
        assert one.even == found.even[one.name]
        for number, head in enumerate(one.heads):
            own = next(heads)
            assert (own.attention, own.head, own.cost, own.cost_error, own.role) == (
                one.name, number, head.cost, head.cost_error, head.role)
            assert head.roles == own.roles
    assert next(heads, None) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": "regard heads 2"}', b"\xff", b"[" * 100_000,
                                     b'{"format": "regard heads 1", "attentions": [{"name": "a"}]}',
                                     b'{"format": "regard heads 1", "attentions": 3}'])
def test_a_damaged_report_is_named(tmp_path, content):
    texting.translator().save(tmp_path / "model")
    (tmp_path / "model" / "heads.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"heads\.json"):
        read_heads(tmp_path / "model")


def test_numbers_of_a_report_are_finite():
    table = texting.translator().heads(PAIRS).table()
    assert HeadReport.from_table(json.loads(json.dumps(table))).table() == table
    table["attentions"][0]["heads"][0]["cost"] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        HeadReport.from_table(table)


@pytest.mark.parametrize(("make", "data", "parts"), [
    (texting.translator, [], ["`data`", "none"]),
    (texting.translator, ["text"], ["data[0]", "(source, target)"]),
    (texting.translator, [("the dog", "le chien", [(0, 9)])], ["data[0]", "2 and 2 words", "(0, 9)"]),
    (texting.classifier, [("the dog", "nowhere")], ["data[0]", "nowhere"]),
    (texting.tagger, [(["the"], [])], ["data[0]", "as many labels"]),
    (texting.completer, [3], ["data[0]", "a text"]),
])
def test_wrong_data_is_named(make, data, parts):
    assert_named(lambda: make().heads(data), parts)


def test_a_notebook_shows_a_table():
    found = texting.translator().heads(PAIRS)
    assert found._repr_html_().count("<tr>") == 1 + len(found.heads)
    assert repr(found).startswith("HeadReport(")
