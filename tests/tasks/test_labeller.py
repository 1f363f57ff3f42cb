"""`Labeller`: a label for every token, whatever the batch and however long the text."""

import pytest
import texting
import torch

import regard
from regard.data.tokenizer.units import TokenEncoder
from regard.tasks.evaluation import evaluate_labeller
from regard.tasks.label_scores import parse_merge
from regard.tasks.load import make_task
from regard.tokens import Tokens

LABELS = ("B-X", "I-X", "O")
TEXTS = ["the dog sleeps.", "Emma", "", "the big dog sees the cat ."]


def characters(embedding="sinusoidal"):
    return texting.character_tagger(("C", "E", "H"), embedding)


def expected(task, tokens):
    """Labels and probabilities of tokens, read alone and whole."""
    ids, first = TokenEncoder(task.tokenizer, task.unit).encode(tokens)
    best = torch.softmax(task.model(Tokens(torch.tensor([ids])))[0, first].float(), -1).max(-1)
    return [task.label_names()[number] for number in best.indices.tolist()], best.values.tolist()


def test_words_have_the_label_of_their_first_subword():
    task = texting.tagger()
    assert isinstance(task, regard.Labeller)
    assert task.unit == "word"
    words = [["the", "dog", "sleeps", "."], ["Emma"], [], ["the", "big", "dog", "sees", "the", "cat", "."]]
    for text, tokens, found in zip(TEXTS, words, task.label(TEXTS, batch_tokens=8), strict=True):
        assert [token.token for token in found.tokens] == tokens
        assert [text[token.start:token.end] for token in found.tokens] == tokens
        if tokens:
            labels, probabilities = expected(task, tokens)
            assert found.labels == labels
            assert [token.probability for token in found.tokens] == pytest.approx(probabilities, abs=1e-5)
    assert task(TEXTS[0]) == task.label(TEXTS)[0]
    assert [token.token for token in task.label("a dog.", tokenized=True).tokens] == ["a", "dog."]
    assert task.label_tokens([["the", "dog"]])[0].labels == expected(task, ["the", "dog"])[0]


def test_characters():
    task = characters()
    found = task.label("MKV?L")
    assert str(found) == "".join(expected(task, "MKV?L")[0])
    assert task.unknown_tokens("MKV?L") == ["?"]
    assert found.tokens[3].token == "?"
    runs = [(span.label, span.start, span.end, span.text) for span in found.spans]
    assert "".join(label * (end - start) for label, start, end, _ in runs) == str(found)
    assert "".join(text for *_, text in runs) == "MKV?L"


def test_entities_have_the_characters_of_their_words():
    task = texting.tagger()
    scheme = make_task(task.model, task.config, tokenizer=task.tokenizer, labels=LABELS)
    found = scheme.label("the dog sees  Emma .")
    assert found.scheme
    for span in found.spans:
        assert found.text[span.start:span.end] == span.text
        inside = [token for token in found.tokens if span.start <= token.start < span.end]
        assert {token.label[2:] for token in inside} == {span.label}
        assert span.probability == pytest.approx(sum(token.probability for token in inside) / len(inside))


def test_long_texts_are_read_in_windows_and_that_is_known():
    task = characters("learned")
    limit = task.max_positions()
    text = "MKVLACDE" * 10
    assert len(text) > limit
    found = task.label(text)
    assert (len(found.tokens), found.windows > 1) == (len(text), True)
    assert task.label(text[:limit]).windows == 1
    assert found.labels[:limit // 4] == expected(task, text[:limit])[0][:limit // 4]
    assert characters().label(text).windows == 1


def test_a_saved_labeller_is_the_same(tmp_path):
    task = characters()
    task.save(tmp_path / "model")
    again = regard.Labeller.load(tmp_path / "model")
    assert again.unit == "character"
    assert again.label("MKVL") == task.label("MKVL")


def test_evaluation_counts_tokens_labels_and_unknown_ones():
    task = characters()
    predicted = [str(one) for one in task.label(["MKVLAC", "WWY"])]
    same = evaluate_labeller(task, [(tuple("MKVLAC"), tuple(predicted[0])), (tuple("WWY"), tuple(predicted[1]))])
    assert (same.scores.accuracy, same.sequences, same.scores.tokens) == (1.0, 2, 9)
    probabilities = [token.probability for one in task.label(["MKVLAC", "WWY"]) for token in one.tokens]
    logs = torch.tensor(probabilities, dtype=torch.float64).log()
    assert same.loss == pytest.approx(-float(logs.mean()), abs=1e-6)
    other = evaluate_labeller(task, [("MKV", "QQQ"), ("WWY", predicted[1])])
    assert other.scores.accuracy == 0.5
    assert other.scores.unknown == {"Q": 3}
    with pytest.raises(ValueError, match="sequences"):
        evaluate_labeller(task, [])
    with pytest.raises(ValueError, match="3 tokens"):
        evaluate_labeller(task, [("MKV", "HH")])


def test_the_most_probable_group_need_not_be_that_of_the_most_probable_label():
    """Of 0.4 E, 0.3 H and 0.3 G, the group of H and G is the most probable."""
    task = characters()
    names = task.label_names()
    merge = f"pair={names[0]}+{names[1]},rest=*"
    with torch.no_grad():
        task.model.output.weight.zero_()
        task.model.output.bias.fill_(-20.0)
        task.model.output.bias[:3] = torch.tensor([0.3, 0.3, 0.4]).log()
    assert task.label("MKV").labels == [names[2]] * 3
    for found in (task.label("MKV", merge=merge), task.label_tokens(["MKV"], merge=merge)[0]):
        assert found.labels == ["pair"] * 3
        assert found.tokens[0].probability == pytest.approx(0.6, abs=1e-4)
    scores = evaluate_labeller(task, [("MKV", [names[2], names[0], "Q"])], groups=parse_merge(merge))
    assert scores.scores.accuracy == pytest.approx(1 / 3)
    assert scores.merged.accuracy == pytest.approx(1 / 3)
    assert scores.merged.confusion == [[1, 0], [2, 0]]
    with pytest.raises(ValueError, match="`merge`"):
        task.label("MKV", merge="pair")


def test_wrong_arguments():
    task = texting.tagger()
    for wrong in (["the dog"], [[""]], [[3]]):
        with pytest.raises(ValueError, match="sequences"):
            task.label_tokens(wrong)
    with pytest.raises(ValueError, match="texts"):
        task.label([3])


def test_maps_have_the_labels_beside_them():
    from regard.tasks.traces import trace_input

    task = texting.tagger()
    trace = trace_input(task, "the dog sleeps.")
    words = ["the", "dog", "sleeps", "."]
    labels = expected(task, words)[0]
    side = trace.sides["labels"]
    assert [side.text[word.start:word.end] for word in side.words] == [
        f"{word}/{label}" for word, label in zip(words, labels, strict=True)]
    assert {(one.queries, one.keys) for one in trace.attentions} == {("labels", "text")}
    ids = TokenEncoder(task.tokenizer, "word").encode(words).ids
    assert all(one.look.weights().shape[-2:] == (len(ids), len(ids)) for one in trace.attentions)
    seen = []
    task.observers.append(seen.append)
    try:
        task.label("the dog")
    finally:
        task.observers.clear()
    assert len(seen) == 1


def test_an_ensemble_takes_the_label_with_the_largest_mean():
    one, other = characters(), texting.character_tagger(("H", "C", "E"), "sinusoidal")
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(-1.5)
    order = [other.label_names().index(name) for name in one.label_names()]
    (own,), (theirs,) = (task.label_probabilities(["MKVLA"]) for task in (one, other))
    mean = (own + theirs[:, order]) / 2
    found = one.label("MKVLA", ensemble=[other])
    assert found.labels == [one.label_names()[number] for number in mean.argmax(-1)]
    assert [token.probability for token in found.tokens] == pytest.approx(mean.max(-1).values.tolist())
    assert found.labels == other.label("MKVLA", ensemble=[one]).labels
    assert str(one.label("MKVLA", ensemble=[one, one])) == str(one.label("MKVLA"))
    with pytest.raises(ValueError, match=r"ensemble\[0\]"):
        one.label("MKVLA", ensemble=[texting.character_tagger(("C", "X", "H"), "sinusoidal")])
