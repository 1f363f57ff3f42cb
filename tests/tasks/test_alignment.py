"""Word alignments: weights and links, the stored head, its choice, and the error rate."""

import os
from dataclasses import replace

import numpy as np
import pytest
import texting
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TRANSLATING, built

import regard
from regard.data import phrasebook
from regard.data.tokenizer.interface import Span, Word
from regard.decoding.forced import with_cross
from regard.decoding.request import Hypothesis
from regard.inspection.trace import word_weights
from regard.reference import statistics as reference
from regard.reference.statistics import alignment_error_rate, normalize_columns
from regard.reference.statistics import held_out_log_likelihood as by_definition
from regard.tasks.alignment import (
    CANDIDATE_OFFSETS,
    CANDIDATE_ROUNDS,
    MAX_CHOICE_PAIRS,
    MIN_LINK_SHARE,
    SHARE_SMOOTHING,
    Alignment,
    AlignmentConfig,
    PairAttention,
    alignment_candidates,
    attention_shares,
    choose_alignment,
    find_links,
    link_log_probability,
    links_between,
    strongest_source_words,
    word_alignment_weights,
)
from regard.tasks.alignment import alignment_error_rate as error_rate
from regard.tasks.load import make_task
from regard.tokens import Tokens


def by_hand(weights, source, target):
    """The definition, one word after another."""
    result = []
    for word in target:
        rows = range(word.first_token, word.last_token + 1)
        result.append([sum(sum(float(weights[row, column]) for row in rows) / len(rows)
                           for column in range(other.first_token, other.last_token + 1)) for other in source])
    return torch.tensor(result, dtype=torch.float64).reshape(len(target), len(source))


def test_tokens_become_words():
    weights = torch.rand(4, 5, dtype=torch.float64)
    source = [Word(0, 1, 0, 0), Word(1, 2, 1, 3)]  # token 4 is the end, and no word
    target = [Word(0, 1, 0, 1), Word(1, 2, 2, 2), Word(2, 3, 3, 3)]
    torch.testing.assert_close(word_weights(weights, source, target), by_hand(weights, source, target))
    assert word_weights(weights, [], target).shape == (3, 0)
    assert word_weights(weights, source, []).shape == (0, 2)


def test_a_layer_is_asked_for_or_points_most_clearly():
    cross = torch.softmax(torch.randn(3, 2, 4, 5, dtype=torch.float64), -1)
    cross[1] = torch.softmax(9 * torch.randn(2, 4, 5, dtype=torch.float64)[:1], -1)
    words = [Word(place, place + 1, place, place) for place in range(4)]
    for asked, layer in ((None, 1), (0, 0), (2, 2), (-1, 2)):
        want = by_hand(cross[layer].mean(0), words, words)
        where = None if asked is None else AlignmentConfig(layer=asked)
        torch.testing.assert_close(word_alignment_weights(cross, words, words, where), want)
    assert word_alignment_weights(cross, [], words).shape == (4, 0)
    for wrong in (3, -4):
        with pytest.raises(ValueError, match="`layer` must be one of the 3 layers"):
            word_alignment_weights(cross, words, words, AlignmentConfig(layer=wrong))
    with pytest.raises(ValueError, match="`head` must be one of the 2 heads of a layer, from 0, but is 2"):
        word_alignment_weights(cross, words, words, AlignmentConfig(layer=0, head=2))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_one_head_and_the_look_some_steps_later(offset):
    cross = torch.rand(2, 3, 5, 4, dtype=torch.float64)  # 4 tokens, and the step behind them
    source, target = [Word(0, 1, 0, 1), Word(1, 2, 2, 2)], [Word(0, 1, 0, 0), Word(1, 2, 1, 2), Word(2, 3, 3, 3)]
    rows = [min(max(token + offset, 0), 4) for token in range(4)]
    want = by_hand(cross[1, 2][rows], source, target)
    where = AlignmentConfig(layer=1, head=2, offset=offset)
    torch.testing.assert_close(word_alignment_weights(cross, source, target, where), want)
    torch.testing.assert_close(word_weights(cross, source, target, offset)[1, 2], want)


@pytest.mark.parametrize("wrong", [{"layer": True}, {"layer": 1.5}, {"layer": 0, "head": -1}, {"layer": 0, "offset": 3},
                                   {"layer": 0, "offset": -3}])
def test_no_place_to_read_at(wrong):
    with pytest.raises(ValueError, match=f'"{[*wrong][-1]}": expected a whole number'):
        AlignmentConfig(**wrong)


@pytest.mark.parametrize("given", [None, "le gros chien dort."])
def test_a_translation_and_where_it_looked(given):
    task, text = texting.translator(pair=texting.separate), "the big dog sleeps."
    found = task.aligned(text, given, layer=0)
    both = task.tokenizer
    ids = both.target.encode(given) if given else [*task.translate(text).ids]
    written = both.target.decode(ids)
    assert found.source == ("the", "big", "dog", "sleeps", ".")
    assert found.target == tuple(written[word.start:word.end] for word in both.target.decoded_words(ids))
    memory = task.model.encode(Tokens(torch.tensor(both.encode_sources([text]))))
    (read,) = with_cross(task.model, memory, [Hypothesis(ids, [0.0] * len(ids), 0.0, None)], prompts=[[2]])
    want = by_hand(read.cross[0].mean(0), both.source.words(text), both.target.decoded_words(ids))
    torch.testing.assert_close(found.weights.double(), want, rtol=0, atol=1e-6)
    assert float(found.weights.sum(-1).max()) < 1.0  # the rest is on the end of the source


def test_nothing_to_align():
    task = texting.translator()
    found = task.aligned("", "")
    assert (found.source, found.target, found.weights.shape) == ((), (), (0, 0))
    with pytest.raises(ValueError, match="`text` must be a text, but is a list"):
        task.aligned(["a"])


def test_a_model_that_looks_at_nothing():
    from dataclasses import replace

    both = texting.joint()
    config = replace(TRANSLATING["seq2seq"], source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    task = make_task(built(config), config, tokenizer=both)
    with pytest.raises(ValueError, match="`model` must be a model with cross-attention"):
        task.aligned("the dog", "le chien")


def spans(*places):
    return tuple(Span(*place) for place in places)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_links_are_the_best_shares_either_way(rounds):
    """As loops over the shares of the reference find them."""
    faint = 0
    for _ in range(20):
        weights = torch.softmax(3 * torch.randn(5, 8, dtype=torch.float64), -1)[:, :7]
        share = reference.normalize_columns(weights.numpy(), SHARE_SMOOTHING, rounds)
        torch.testing.assert_close(attention_shares(weights, rounds), torch.from_numpy(share), rtol=1e-12, atol=0)
        best = {(max(range(7), key=lambda s, t=t: share[t, s]), t) for t in range(5)}
        best |= {(s, max(range(5), key=lambda t, s=s: share[t, s])) for s in range(7)}
        assert find_links(weights, rounds) == {(s, t) for s, t in best if share[t, s] >= MIN_LINK_SHARE}
        faint += len(best) - len(find_links(weights, rounds))
    assert faint


def test_a_word_that_many_look_at_leaves_them_their_own():
    """The article looks at its noun more than at the article, and the full stop at the last word; not so the others."""
    weights = torch.tensor([[0.2, 0.8, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.6, 0.4]])
    assert find_links(weights) == {(0, 0), (1, 1), (2, 2), (3, 3)}
    weights = torch.tensor([[0.99, 0.01], [0.995, 0.005]])  # what nobody looks at gains nothing by that
    assert find_links(weights) == {(0, 0), (0, 1)}


def test_links_of_an_alignment():
    weights = torch.tensor([[0.1, 0.6, 0.1], [0.5, 0.3, 0.1], [0.2, 0.7, 0.0], [0.0, 0.0, 0.0]])
    found = Alignment(("a", "b", "c"), ("d", "e", "f", "g"), weights, spans((0, 1), (2, 3), (4, 5)),
                      spans((0, 1), (1, 2), (2, 3), (4, 5)))
    assert [(link.source, link.target) for link in found.links] == [(0, 1), (1, 2), (2, 0)]
    assert [link.weight for link in found.links] == pytest.approx([0.5, 0.7, 0.1])
    assert found.pharaoh() == "0-1 1-2 2-0"
    several = torch.softmax(3 * torch.randn(20, 4, 3), -1)
    for weights in several:
        links = found._replace(weights=weights, rounds=9).links
        assert {(link.source, link.target) for link in links} == find_links(weights, 9)
    assert any(find_links(weights, 9) != find_links(weights) for weights in several)
    table = found.table()
    assert table["target"][3] == {"text": "g", "start": 4, "end": 5}
    assert table["links"][0] == {"source": 0, "target": 1, "weight": pytest.approx(0.5)}
    assert Alignment((), ("d",), torch.zeros(1, 0), (), spans((0, 1))).pharaoh() == ""


def test_several_at_once_are_as_each_alone():
    task = texting.translator(pair=texting.separate)
    texts = ["the big dog sleeps.", "no", "", "Emma sees  a cat, we sing."]
    translations = task.translate(texts, beams=2, max_length=7)
    found = task.align(texts, translations, layer=0)
    for text, one, alignment in zip(texts, translations, found, strict=True):
        (alone,) = task.align([text], [one], layer=0)
        assert alignment[:2] + alignment[3:] == alone[:2] + alone[3:]
        torch.testing.assert_close(alignment.weights, alone.weights, rtol=0, atol=1e-6)
        assert [text[begin:end] for begin, end in alignment.source_spans] == [*alignment.source]
        assert [one.text[begin:end] for begin, end in alignment.target_spans] == [*alignment.target]
    assert found[3].source == ("Emma", "sees", "a", "cat", ",", "we", "sing", ".")
    assert task.align([], []) == []
    for wrong in (translations[:2], translations[0]):
        with pytest.raises(ValueError, match="`translations` must be one for each text, 4"):
            task.align(texts, wrong)


WHERE = AlignmentConfig(layer=1, head=1, offset=1, rounds=3)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def again(task, **options):
    """The same model in a task of its own."""
    return make_task(task.model, task.config, tokenizer=task.tokenizer, **options)


@pytest.mark.parametrize("where", [None, WHERE, AlignmentConfig(layer=0)])
def test_it_comes_back(where, tmp_path):
    task = again(texting.translator(), aligned_by=where)
    task.save(tmp_path / "model")
    assert ("[alignment]" in (tmp_path / "model" / "config.toml").read_text()) == (where is not None)
    found = regard.load(tmp_path / "model")
    assert found.aligned_by == where
    text, translation = "the big dog sleeps.", "le gros chien dort."
    first, second = (one.aligned(text, translation) for one in (task, found))
    assert first.rounds == second.rounds == (1 if where is None else where.rounds)
    torch.testing.assert_close(first.weights, second.weights, rtol=0, atol=1e-5)  # in float32


@pytest.mark.parametrize(("line", "said"), [("layer = -1.5", "layer"), ("layer = 0\nheads = 1", "heads"),
                                            ("head = 0", "layer")])
def test_a_table_that_says_something_else(line, said, tmp_path):
    from regard import toml
    from regard.tasks import task as description

    again(texting.translator(), aligned_by=WHERE).save(tmp_path / "model")
    text = (tmp_path / "model" / "config.toml").read_text()
    begin = text.index("[alignment]\n") + len("[alignment]\n")
    wrong = f"{text[:begin]}{line}\n{text[text.index('[', begin):]}"
    with pytest.raises(ValueError, match=said):
        description.read_description(toml.parse_document(wrong, "config.toml"))


def test_it_is_used_unless_a_layer_is_asked_for():
    task = again(texting.translator(), aligned_by=WHERE)
    text, written = "the big dog sleeps.", "le gros chien dort."
    (looked,) = task._pair_attention([(text, task.tokenizer.target.encode(written))])
    assert looked.cross.shape[-2] == len(task.tokenizer.target.encode(written)) + 1
    want = word_weights(looked.cross[1, 1], looked.source, looked.target, 1)
    torch.testing.assert_close(task.aligned(text, written).weights, want)
    (translation,) = task.translate([text], max_length=6)
    (other,) = task._pair_attention([(text, translation.ids)])
    torch.testing.assert_close(task.align([text], [translation])[0].weights,
                               word_weights(other.cross[1, 1], other.source, other.target, 1))
    mean = word_weights(looked.cross[0].mean(0), looked.source, looked.target)
    torch.testing.assert_close(task.aligned(text, written, layer=0).weights, mean)
    for wrong in ({"layer": 9}, {"layer": 0, "head": 9}):
        with pytest.raises(ValueError, match=f"`{[*wrong][-1]}` must be one of the "):
            again(task, aligned_by=AlignmentConfig(**wrong)).aligned(text, written)


def test_what_cannot_be_aligned():
    task = texting.translator(embedding="learned")  # 12 positions
    (found,) = task.translate(["no"])
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be at most 12 tokens long"):
        task.align(["no", "no " * 12], [found, found])
    for ask in (lambda: task.aligned("no", "non " * 30), lambda: task.aligned("no " * 12, "non")):
        with pytest.raises(ValueError, match="must be at most 12 tokens long"):
            ask()
    with pytest.raises(ValueError, match=r"`translations\[1\]` .* a str"):
        task.align(["no", "no"], [found, "non"])


def test_it_belongs_to_translators():
    with pytest.raises(ValueError, match="`aligned_by` must be None, for a Filler, but is given"):
        again(texting.filler(), aligned_by=WHERE)
    with pytest.raises(ValueError, match="`aligned_by` must be an AlignmentConfig, but is an int"):
        again(texting.translator(), aligned_by=1)


@pytest.mark.thorough
def test_the_choice_is_of_the_pairs_alone():
    task, pairs = texting.translator(), texting.pairs()
    found = task.choose_alignment(pairs[:40])
    assert found in alignment_candidates(*task._pair_attention([("a", [5])])[0].cross.shape[:2])
    assert task.aligned_by is None
    assert again(task, aligned_by=WHERE).choose_alignment([list(pair) for pair in pairs[:40]]) == found
    many = pairs[:40] * (MAX_CHOICE_PAIRS // 40 + 1)
    assert task.choose_alignment(many) == task.choose_alignment(many[:MAX_CHOICE_PAIRS])


@pytest.mark.parametrize(("pairs", "said"), [
    ([], "`pairs` must be at least one, but is none"),
    (["ab", "cd"], r"`pairs\[0\]` .* 'ab'"),
    ([("a", "b"), ("a",)], r"`pairs\[1\]` .* \('a',\)"),
    ([("a", 5)], r"`pairs\[0\]` .* \('a', 5\)"),
])
def test_what_are_no_pairs(pairs, said):
    with pytest.raises(ValueError, match=said):
        texting.translator().choose_alignment(pairs)


def test_a_model_that_looks_at_nothing_in_particular():
    both = texting.joint()
    sizes = {"source_vocab_size": both.source.size, "target_vocab_size": both.target.size}
    made = {}
    for kind in ("seq2seq", "seq2seq-attention", "attention"):
        config = replace(TRANSLATING[kind], **sizes)
        made[kind] = make_task(built(config), config, tokenizer=both)
    assert {kind: task.attends for kind, task in made.items()} == {
        "seq2seq": False, "seq2seq-attention": True, "attention": True}
    assert made["seq2seq-attention"].choose_alignment(texting.pairs()[:9]).head is None  # it has one
    with pytest.raises(ValueError, match="`model` must be a model with cross-attention"):
        made["seq2seq"].choose_alignment([("a", "b")])


LINKS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(LINKS, LINKS, LINKS)
def test_one_sentence(found, sure, possible):
    if found or sure:
        assert error_rate([found], [sure], [possible]) == pytest.approx(alignment_error_rate(found, sure, possible))
        assert error_rate([found], [sure]) == pytest.approx(alignment_error_rate(found, sure, sure))


def test_sums_over_sentences():
    found, sure = [[(0, 0), (1, 1)], [(0, 0)], []], [[(0, 0)], [(0, 1), (1, 1)], []]
    assert error_rate(found, sure) == pytest.approx(1 - 2 * 1 / (3 + 3))
    assert error_rate([[]], [[]]) == 0
    assert error_rate([[]], [[(0, 0)]]) == 1
    for wrong in ({"sure": sure[:2]}, {"sure": sure, "possible": sure[:1]}):
        with pytest.raises(ValueError, match="must be links for each of 3 sentences, but is for"):
            error_rate(found, **wrong)


def test_shares_are_right_where_the_largest_weight_is_not():
    """Looks as models have them: every third word looks at the word before, and after, its own more than at its own."""
    largest, found, gold = [], [], []
    for pair in phrasebook.pairs(100, split="test", max_words=10):
        own = torch.zeros(len(pair.target_words), len(pair.source_words))
        for s, t in pair.alignment:
            own[t, s] = 1
        own /= own.sum(-1, keepdim=True)
        weights = own.clone()
        weights[::3] = 0.3 * own[::3] + 0.5 * own.roll(-1, 0)[::3] + 0.2 * own.roll(1, 0)[::3]
        largest.append({(s, t) for t, s in enumerate(weights.argmax(-1).tolist())})
        found.append(find_links(weights, 3))
        gold.append(pair.alignment)
    assert error_rate(found, gold) < 0.1 < 0.25 < error_rate(largest, gold)


def test_links_between_other_words():
    """A tokenizer may have made one word of two: its links are those of both."""
    (pair,) = phrasebook.pairs(1, seed=3, max_words=6)
    starts, ends = zip(*pair.target_offsets, strict=True)
    source = [Word(start, end, number, number) for number, (start, end) in enumerate(pair.source_offsets)]
    target = [Word(starts[0], ends[1], 0, 0), *(Word(start, end, number, number) for number, (start, end) in
                                                enumerate(pair.target_offsets[2:], 1))]
    weights = torch.zeros(len(target), len(source))
    weights[0, 0] = weights[1, 2] = 1
    alignment = Alignment.of(pair.source, source, pair.target, target, weights)
    assert links_between(alignment, pair.source_offsets, pair.target_offsets) == {(0, 0), (0, 1), (2, 2)}


LAYERS, HEADS = 3, 2
PAIRS = [*phrasebook.pairs(150, seed=5, max_words=8)]


def tokens(offsets):
    """A token for each word."""
    return [Word(start, end, number, number) for number, (start, end) in enumerate(offsets)]


def looked(pair, right, noise=0.3, heads=HEADS):
    """Looks at anything, but those of the right place, which are more often at the words that belong to each."""
    source, target = tokens(pair.source_offsets), tokens(pair.target_offsets)
    cross = 3 * torch.randn(LAYERS, heads, len(target) + 1, len(source) + 1, dtype=torch.float64)
    for number in range(heads) if right.head is None else [right.head]:
        for s, t in pair.alignment:
            row = t + right.offset
            if row >= 0 and torch.rand(()) > noise:
                cross[right.layer, number, row, s] += 9
    return PairAttention(torch.softmax(cross, -1), pair.source, source, pair.target, target)


@pytest.mark.thorough
@pytest.mark.parametrize("offset", CANDIDATE_OFFSETS)
@pytest.mark.parametrize("head", [None, 1])
def test_the_place_that_is_right_is_found(offset, head):
    right = AlignmentConfig(layer=1, head=head, offset=offset)
    assert replace(choose_alignment(looked(pair, right) for pair in PAIRS), rounds=1) == right


def test_a_layer_of_one_head_is_its_mean():
    right = AlignmentConfig(layer=2, offset=1)
    assert replace(choose_alignment(looked(pair, right, heads=1) for pair in PAIRS), rounds=1) == right
    assert alignment_candidates(1, 1) == [AlignmentConfig(layer=0, offset=offset, rounds=rounds)
                                for rounds in CANDIDATE_ROUNDS for offset in CANDIDATE_OFFSETS]


def test_more_rounds_where_words_look_at_neighbours():
    """Every other word looks at the one in front of its own more than at its own."""
    sharp = [looked(pair, AlignmentConfig(layer=0), noise=0.0, heads=1) for pair in PAIRS]
    sharp = [found._replace(cross=(found.cross[:1] == found.cross[:1].amax(-1, keepdim=True)).double())
             for found in sharp]
    blurred = []
    for found in sharp:
        cross = found.cross.clone()
        cross[..., ::2, :-1] = 0.4 * cross[..., ::2, :-1] + 0.6 * cross[..., ::2, 1:]
        blurred.append(found._replace(cross=cross))
    assert [choose_alignment(found).rounds for found in (sharp, blurred)] == [1, 3]


def test_rare_words_do_not_win():
    """One head looks at words that are met once, another finds what belongs together half of the time."""
    right = AlignmentConfig(layer=0, head=0)
    pairs = []
    for number, pair in enumerate(PAIRS):
        found = looked(pair, right, noise=0.5)
        place = len(pair.source)
        text, rare = f"{pair.source} rare{number}", Word(place + 1, place + len(f" rare{number}"), len(found.source),
                                                         len(found.source))
        cross = torch.cat([found.cross, found.cross[..., -1:]], -1)
        cross[0, 1, :, rare.first_token] = 30
        pairs.append(found._replace(cross=cross, text=text, source=[*found.source, rare]))
    assert choose_alignment(pairs).head != 1


def test_candidates_are_in_the_order_of_what_they_point_at():
    found = looked(PAIRS[0], AlignmentConfig(layer=0))
    for place, one in zip(alignment_candidates(LAYERS, HEADS), strongest_source_words(found), strict=True):
        layer = found.cross[place.layer]
        weights = (layer.mean(0) if place.head is None else layer[place.head])[:, :len(found.source)]
        rows = [min(max(row + place.offset, 0), len(found.target)) for row in range(len(found.target))]
        assert one.tolist() == normalize_columns(weights[rows].numpy(), SHARE_SMOOTHING,
                                                 place.rounds).argmax(-1).tolist()


def test_scores_are_the_definition():
    generator = np.random.default_rng(0)
    for _ in range(20):
        counts = generator.integers(1, 5, 6)
        sentences = np.repeat(np.arange(6), counts)
        source, target = generator.integers(0, 4, (2, counts.sum()))
        links = [[(s, t) for s, t, k in zip(source, target, sentences, strict=True) if k == number]
                 for number in range(6)]
        assert link_log_probability(source, target, sentences) == pytest.approx(by_definition(links), rel=1e-12)


def test_nothing_to_choose_from():
    empty = PairAttention(torch.zeros(2, 2, 1, 1), "", [], "", [])
    assert choose_alignment([empty]) == AlignmentConfig(layer=0)
    with pytest.raises(ValueError, match="`pairs` must be at least one, but is none"):
        choose_alignment([])
