"""Training of a model for several languages: its parts, rates, validation, requests, and the trained model."""

import codecs
import itertools
import json
import math
import os
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import texting
import tiny
import trained
from calling import call, tables
from long_form import LONG

import regard
from regard.cli.demo import DEMO_CHANGES
from regard.data import phrasebook
from regard.data.batches.feed import BatchConfig
from regard.data.directions import DirectionData, with_reverses
from regard.data.filters import FilterConfig
from regard.data.languages import LanguagePair
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import BytesConfig, UnigramConfig
from regard.tasks.evaluation import corpus_scores
from regard.tasks.info import read_info
from regard.training.config import DataConfig
from regard.training.tasks.directions import requested_directions, with_file_directions
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.sentence_pairs import (
    add_noise,
    prepare_pairs,
    split_pairs,
    survey_directions,
    temperature_rates,
    translation_feed,
)
from regard.training.tasks.translation import TranslationTask

PLAIN = DataConfig(filters=FilterConfig(drop=()))
EN_FR, EN_DE = LanguagePair("en", "fr"), LanguagePair("en", "de")
GERMAN = str.maketrans("aeiou", "äëïöü")


def lines(count, start=0):
    return "".join(f"thing {n} here\tchose {n} ici\n" for n in range(start, start + count))


@pytest.fixture
def directions(file):
    """Two directions of 40 and 10 pairs."""
    return [DirectionData(EN_FR, (file("fr.tsv", lines(40)),)), DirectionData(EN_DE, (file("de.tsv", lines(10, 100)),))]


def prepared(directions, place, tokenizer=None, fraction=0.2, **options):
    found = split_pairs(survey_directions(directions, PLAIN), DataConfig(validation_fraction=fraction,
                                                                         sampling_temperature=5.0))
    return prepare_pairs(found, tokenizer or BytesConfig(), place, **options)


def test_each_direction_is_a_part_with_its_control_token(directions, tmp_path):
    found = prepared(with_reverses(directions), tmp_path)
    survey, source = found.survey, found.tokenizer.source
    assert [(part.name, part.controls, part.reverse) for part in survey.parts] == [
        ("en-fr", ("<2fr>",), False), ("fr-en", ("<2en>",), True), ("en-de", ("<2de>",), False),
        ("de-en", ("<2en>",), True)]
    assert [*source.controls] == ["<2fr>", "<2en>", "<2de>"]
    want = [[source.control_id(part.controls[0]), *source.encode(pair.source), found.tokenizer.source_end]
            for part in survey.parts for pair in survey.part_pairs(part)]
    ids, lengths = found.store.sides[0].ids, found.store.sides[0].lengths(0, len(found.store))
    assert [list(row) for row in np.split(np.asarray(ids), np.cumsum(lengths)[:-1])] == want


def test_a_held_out_pair_is_held_out_both_ways(directions):
    found = split_pairs(survey_directions(with_reverses(directions), PLAIN), DataConfig(validation_fraction=0.2))
    there, back = ([{*pairs} for pairs in (
        [(pair.source, pair.target) if not found.parts[part].reverse else (pair.target, pair.source)
         for pair in found.validation_pairs(1000) if pair.part == part],
        [(pair.source, pair.target) if not found.parts[part].reverse else (pair.target, pair.source)
         for pair in found.part_pairs(found.parts[part])])] for part in (0, 1))
    assert there == back
    assert there[0]
    assert there[0].isdisjoint(there[1])
    assert len(there[0]) + len(there[1]) == 40


def test_one_direction_needs_no_control_token(directions, tmp_path):
    found = prepared(directions[:1], tmp_path)
    assert not found.tokenizer.source.controls
    assert not found.survey.directions
    assert found.survey.languages == EN_FR


def test_small_directions_are_drawn_more_often(directions, tmp_path):
    found = prepared(directions, tmp_path)
    counts = found.rates.counts
    weights = [count ** (1 / 5) for count in counts]
    drawn = [count * rate for count, rate in zip(counts, found.rates.rates, strict=True)]
    assert drawn == pytest.approx([sum(counts) * weight / sum(weights) for weight in weights])
    assert temperature_rates([7, 7, 7], 5.0) == pytest.approx([1, 1, 1])
    assert temperature_rates([100, 3], 1.0) == pytest.approx([1, 1])
    [note] = [note for note in found.notes if "sampling_temperature" in note]
    assert f"en-de {drawn[1] / sum(drawn):.0%}" in note


def test_sentences_to_restore_are_parts_of_their_own(directions, tmp_path):
    """They belong to the largest direction of their language, and no sentence that is held out is among them."""
    config = replace(PLAIN, zero_shot=True)
    found = split_pairs(survey_directions(with_reverses(directions), config),
                        replace(config, validation_fraction=0.2, sampling_temperature=5.0))
    restored = [part for part in found.parts if part.restored]
    assert [(part.name, part.controls, part.validated) for part in restored] == [
        ("fr restored", ("<2fr>",), False), ("en restored", ("<2en>",), False), ("de restored", ("<2de>",), False)]
    assert len(found.directions) == 4 == len(found.parts) - len(restored)
    assert [part.report.kept for part in restored] == [40, 40, 10]
    assert found.counts == {"pairs": 100, "restored_pairs": 90}
    held = {pair.target for pair in found.validation_pairs(1000)}
    assert held
    for part in restored:
        pairs = [*found.part_pairs(part)]
        assert pairs
        assert held.isdisjoint(pair.target for pair in pairs)
        assert all(pair.source == add_noise(pair.target) for pair in pairs)
    made = prepare_pairs(found, BytesConfig(), tmp_path)
    drawn = [count * rate for count, rate in zip(made.rates.counts, made.rates.rates, strict=True)]
    assert drawn[4] == pytest.approx(drawn[0] / 2)
    assert any("fr restored" in note for note in made.notes)


def test_noise_moves_and_leaves_out_words():
    texts = [" ".join(f"w{n}" for n in range(length)) for length in range(1, 60)]
    kept = 0
    for text in texts:
        words = [int(word[1:]) for word in add_noise(text).split()]
        assert add_noise(text) == " ".join(f"w{n}" for n in words)
        assert 1 <= len(words) == len({*words})
        order = sorted(words)
        assert all(abs(order.index(word) - place) < 3 for place, word in enumerate(words))
        kept += len(words)
    assert kept / sum(range(1, 60)) == pytest.approx(0.9, abs=0.03)
    assert any(add_noise(text) != text for text in texts)
    assert {*add_noise("我今天很高兴见到你")} <= {*"我今天很高兴见到你"}
    assert add_noise("") == ""


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_batches_have_the_control_tokens_of_their_direction(directions, tmp_path, sampling):
    """Also where texts are tokenized anew in every epoch."""
    found = prepared(directions, tmp_path, UnigramConfig(vocab_size=300), sampled=bool(sampling))
    tokenizer, names = found.tokenizer, {id_: name for name, id_ in found.tokenizer.source.controls.items()}
    feed = translation_feed(found, partial_batches(), seed=1, sampling=sampling)
    first_german, seen = found.rates.counts[0], Counter()
    for step in range(2 * feed.steps):
        batch = feed.at(step)
        for number, row in zip(batch.numbers.tolist(), rows(batch.source), strict=True):
            assert names[row[0]] == ("<2de>" if number >= first_german else "<2fr>")
            assert not {*row[1:]} & {*names}
            text = tokenizer.source.decode(row)
            assert (int(text.split()[1]) >= 100) == (number >= first_german)
            seen[number >= first_german] += 1
    assert seen[True] > seen[False] * 10 / 40  # more often than its share


def partial_batches():
    return BatchConfig(max_tokens=200)


def rows(tokens):
    """The rows of padded or packed tokens, without padding."""
    if tokens.lengths is None:
        return [row.tolist() for row in tokens.ids]
    if tokens.ids.shape[0] == 1 and len(tokens.lengths) != 1:
        return [part.tolist() for part in tokens.ids[0].split(tokens.lengths.tolist())]
    return [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths.tolist(), strict=True)]


def test_scores_are_means_of_directions(directions, tmp_path, settings):
    task_prepared = prepared(with_reverses(directions), tmp_path)
    size = task_prepared.tokenizer.source.size
    config = tiny.translating(source_vocab_size=size, target_vocab_size=size, share_embeddings=True)
    training = TranslationTask(task_prepared, config, settings(tokens=400, shown=4))
    translator = training.wrap(tiny.built(config))
    found = training.validate(translator)
    each = {}
    for part, direction in enumerate(task_prepared.survey.directions):
        some = [(source, target) for source, target, number in
                zip(training.sources, training.targets, training.validation_parts, strict=True) if number == part]
        made = translator.translate([source for source, _ in some], to=direction.target, beams=1, length_penalty="none")
        each[str(direction)] = corpus_scores([one.text for one in made], [target for _, target in some], draws=1000)
    for metric in ("bleu", "chrf"):
        for name, one in each.items():
            assert found.scores[f"{metric}/{name}"] == pytest.approx(getattr(one, metric))
        assert found.scores[metric] == pytest.approx(math.fsum(getattr(one, metric) for one in each.values()) / 4)
    details = found.details()
    expected = {f"{metric}/{name}_interval": [*getattr(one, f"{metric}_interval")] for name, one in each.items()
                for metric in ("bleu", "chrf") if getattr(one, f"{metric}_interval") is not None}
    assert expected
    assert {name: value for name, value in details.items() if name.endswith("_interval")} == expected
    assert {example.input for example in found.examples} == {
        next(source for source, number in zip(training.sources, training.validation_parts, strict=True)
             if number == part) for part in range(4)}


def asked(data=(), **options):
    return TrainingRequest(task=options.pop("task", "seq2seq"), data=tuple(data), output=Path("nowhere"), **options)


def names(request, config=PLAIN):
    return [one.name for one in requested_directions(with_file_directions(request), config)]


def test_where_directions_come_from(file):
    entries = [{"source": "a", "target": "b", "source_lang": "en", "target_lang": code} for code in ("fr", "de")]
    pairs = file("pairs.en-fr.tsv", lines(3))
    rows = file("rows.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))
    assert names(asked([pairs])) == []
    assert names(asked([pairs], both_ways=True)) == ["en-fr", "fr-en"]
    assert names(asked([rows])) == ["en-fr", "en-de"]
    assert names(asked([rows], both_ways=True)) == ["en-fr", "fr-en", "en-de", "de-en"]
    recipe = file("train.toml", f'[[data.direction]]\nlanguages = "en-fr"\nfiles = ["{pairs}"]\nboth_ways = true\n'
                                f'[[data.direction]]\nlanguages = "en-de"\nfiles = ["{rows}"]\n')
    assert names(asked(recipe=recipe)) == ["en-fr", "fr-en", "en-de"]


def test_the_languages_choose_among_the_directions_of_lines(file):
    """The others are counted, and reading the pairs again does not count them again."""
    def rows(name, codes):
        return file(name, "".join(json.dumps({"source": f"thing {n} here", "target": f"chose {n} ici",
                                              "source_lang": "en", "target_lang": code}) + "\n"
                                  for n, code in enumerate(codes)))

    data, dev, german = rows("rows.jsonl", ["fr", "de", "fr", "de", "de"]), rows("dev.jsonl", ["de", "fr"]), rows(
        "german.jsonl", ["de"])
    chosen = replace(PLAIN, source_lang="en", target_lang="fr")
    found = requested_directions(asked([data], validation=(dev,)), chosen)
    assert [(one.name, one.data, one.validation) for one in found] == [("en-fr", (data,), (dev,))]
    survey = survey_directions(found, chosen)
    assert not survey.directions
    for _ in range(2):
        assert [pair.source for pair in survey.training_pairs()] == ["thing 0 here", "thing 2 here"]
        assert [note for note in survey.warnings if "3 for en-de" in note]
    assert names(asked([data]), replace(PLAIN, target_lang="de")) == ["en-de"]
    for given in (asked([german]), asked([data], validation=(german,))):
        with pytest.raises(DataError, match=r"german\.jsonl: .*en-de.*en-fr.*--languages"):
            names(given, chosen)
    before = replace(chosen, directions=("en-fr", "en-de"))  # of a training that took all of them
    assert names(asked([data], resume=True), before) == ["en-fr", "en-de"]


@pytest.mark.parametrize(("options", "said"), [
    ({"directions": (DirectionData(EN_FR, ("a",)),), "data": ["b"]}, "DATA"),
    ({}, "no data"),
    ({"directions": (DirectionData(EN_FR, ("a",)),), "task": "language"}, "seq2seq"),
])
def test_requests_that_are_refused(options, said):
    with pytest.raises(DataError, match=said):
        with_file_directions(asked(**options))


def test_both_ways_needs_the_languages(file):
    with pytest.raises(DataError, match=r"pairs\.tsv.*--languages"):
        names(asked([file("pairs.tsv", lines(3))], both_ways=True))


def test_a_wrong_table_is_refused_with_its_line(file):
    recipe = file("train.toml", '[[data.direction]]\nlanguages = "en-fr"\nfile = ["a.tsv"]\n')
    with pytest.raises(ValueError, match=r"train\.toml:3"):
        with_file_directions(asked(recipe=recipe))


@pytest.mark.parametrize(("options", "said"), [
    (["--direction", "en-fr:{pairs}", "--direction", "en-fr:{pairs}"], "en-fr"),
    (["--direction", "en-en:{pairs}"], "en-en"),
    (["--direction", "en-fr:"], "--direction"),
    (["--direction", "en-fr:{pairs},{pairs}"], "twice"),
    (["--direction", "en-fr:missing.tsv"], "missing.tsv"),
    (["--direction", "en-fr:{pairs}", "--validation", "en-de:{pairs}"], "en-de"),
    (["--direction", "en-fr:{pairs}", "--validation", "{pairs}"], "--validation"),
    (["{pairs}", "--direction", "en-fr:{pairs}"], "DATA"),
    (["--both-ways"], "no data"),
    (["--direction", "en-fr:{pairs}", "--set", "data.sampling_temperature=2"], "sampling_temperature"),
    (["{pairs}", "--set", 'data.directions=["en-fr", "fr-en"]'], "data.directions"),
    (["--direction", "en-fr:{pairs}", "--task", "language"], "seq2seq"),
    (["--direction", "en-fr:{pairs}", "--zero-shot"], "--zero-shot"),
    (["{pairs}", "--zero-shot"], "--zero-shot"),
    (["--direction", "es-de:{header}"], "header.tsv: The languages of this file are en, fr,"),
    (["--direction", "en-fr:{pairs}", "--validation", "en-fr:{german}"], "german.tsv"),
])
def test_wrong_calls_exit_with_2_and_leave_nothing(file, tmp_path, options, said):
    files = {"pairs": file("pairs.tsv", lines(30)), "header": file("header.tsv", f"en\tfr\n{lines(30)}"),
             "german": file("german.tsv", f"en\tde\n{lines(3)}")}
    code, _, error = call("train", *(option.format(**files) for option in options), "-o", tmp_path / "model")
    assert code == 2
    assert said in error
    assert not (tmp_path / "model").exists()


def german(path, count=60):
    """Pairs of English and a language that is English with other vowels."""
    found = phrasebook.pairs(count, seed=1, max_words=6)
    path.write_text("".join(f"{pair.source}\t{pair.source.translate(GERMAN)}\n" for pair in found), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of three directions, trained for a few steps from the command line."""
    place = tmp_path_factory.mktemp("directions")
    trained.pairs(place / "fr.tsv", 80)
    german(place / "de.tsv", 40)
    code, _, said = call(*trained.arguments("--both-ways", place / "model", "--direction", f"en-fr:{place / 'fr.tsv'}",
                                            "--direction", f"en-de:{place / 'de.tsv'}",
                                            training__validation__max_examples=8))
    assert code == 0, said
    return place / "model"


@pytest.mark.thorough
def test_the_model_knows_its_directions(model):
    info = read_info(model)
    assert [*map(str, info.directions)] == ["en-fr", "fr-en", "en-de", "de-en"]
    assert {"bleu/en-de", "chrf/de-en"} <= {*info.record["scores"]}
    task = regard.load(model)
    assert task.target_languages == ("fr", "en", "de")
    validations = [entry["scores"] for entry in task.history if "scores" in entry]
    assert all("bleu/fr-en" in scores for scores in validations)
    [table] = tables("info", model)
    assert table["directions"] == ["en-fr", "fr-en", "en-de", "de-en"]
    assert "--to fr" in table["command"]
    code, _, said = call("info", model, "--set-languages", "en-fr")
    assert code == 2
    assert "en-de" in said


@pytest.mark.thorough
def test_commands_take_the_target_language(model, tmp_path):
    task, text = regard.load(model), "the dog"
    want = task.translate(text, to="de", max_length=4).text
    code, out, said = call("translate", model, "--to", "de", "--max-length", "4", text)
    assert (code, out, said) == (0, f"{want}\n", "")
    (tmp_path / "texts.txt").write_text(f"{text}\n")
    code, out, _ = call("translate", model, "--to", "de", "--max-length", "4", tmp_path / "texts.txt")
    assert out == f"{want}\n"
    for options in ([], ["--to", "xx"]):
        code, out, said = call("translate", model, text, *options)
        assert (code, out) == (2, "")
        assert "en-fr, fr-en, en-de, de-en" in said
    code, out, _ = call("look", model, text, "--to", "fr", "--terminal", "--beam", "1")
    assert code == 0
    assert call("look", model, text, "--terminal")[0] == 2


@pytest.mark.thorough
def test_each_direction_is_evaluated(model, tmp_path):
    place = model.parent
    rows = tmp_path / "rows.tsv"
    rows.write_text("source\ttarget\tsource_lang\ttarget_lang\nthe dog\tthë dög\ten\tde\nthe cat\tle chat\ten\tfr\n")
    [found] = tables("evaluate", model, "--direction", f"en-fr:{place / 'fr.tsv'}", "--direction",
                     f"en-de:{place / 'de.tsv'}", "--beam", "1")
    assert [(one["direction"], one["pairs"]) for one in found["directions"]] == [("en-fr", 80), ("en-de", 40)]
    assert found["bleu"] == pytest.approx(sum(one["bleu"] for one in found["directions"]) / 2)
    [alone] = tables("evaluate", model, place / "de.tsv", "--to", "de", "--beam", "1")
    assert alone["chrf"] == found["directions"][1]["chrf"]
    [lines_named] = tables("evaluate", model, rows, "--beam", "1")
    assert [one["direction"] for one in lines_named["directions"]] == ["en-de", "en-fr"]
    for wrong in ([place / "de.tsv"], ["--direction", f"en-xx:{place / 'de.tsv'}"], []):
        assert call("evaluate", model, *wrong, "--beam", "1")[0] == 2
    code, out, _ = call("compare", model, model, place / "de.tsv", "--to", "de", "--beam", "1", "--json")
    assert code == 0
    assert json.loads(out)["same"] == 40


@pytest.mark.thorough
def test_resumed_after_a_kill_it_is_the_same(tmp_path):
    """Also where the names of files tell the languages of one direction."""
    trained.pairs(tmp_path / "fr.tsv", 40)
    pairs = [line.split("\t") for line in (tmp_path / "fr.tsv").read_text(encoding="utf-8").splitlines()]
    for side, code in enumerate(("en", "fr")):
        (tmp_path / f"train.{code}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    german(tmp_path / "de.tsv", 20)
    options = ["--direction", f"en-fr:{tmp_path / 'train.en'},{tmp_path / 'train.fr'}", "--direction",
               f"en-de:{tmp_path / 'de.tsv'}"]
    arguments = partial(trained.arguments, "--both-ways")
    kill = {"event": "TrainingProgress", "step": 5}
    codes = trained.called(tmp_path, [
        (arguments(tmp_path / "whole", *options), None), (arguments(tmp_path / "killed", *options), kill),
        (arguments(tmp_path / "killed", *options, "--resume"), None)])
    assert codes == [0, -signal.SIGKILL, 0]
    whole, killed = trained.contents(tmp_path / "whole"), trained.contents(tmp_path / "killed")
    assert {name: data for name, data in whole.items() if name != "manifest.json"} == {
        name: data for name, data in killed.items() if name != "manifest.json"}
    assert "source_lang" not in (tmp_path / "whole" / "config.toml").read_text()


def test_a_model_of_one_direction_starts_none_of_several(tmp_path):
    texting.translator().save(tmp_path / "base")
    trained.pairs(tmp_path / "fr.tsv", 40)
    german(tmp_path / "de.tsv", 20)
    for options in (["--direction", f"en-fr:{tmp_path / 'fr.tsv'}", "--direction", f"en-de:{tmp_path / 'de.tsv'}"],
                    [tmp_path / "fr.tsv", "--languages", "en-fr", "--both-ways"]):
        code, _, said = call("train", *options, "--from", tmp_path / "base", "-o", tmp_path / "out")
        assert code == 2
        assert "base" in said
        assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_other_directions_are_not_resumed(tmp_path):
    trained.pairs(tmp_path / "fr.tsv", 40)
    german(tmp_path / "de.tsv", 20)
    french, other = f"en-fr:{tmp_path / 'fr.tsv'}", f"en-de:{tmp_path / 'de.tsv'}"
    first = trained.arguments("--both-ways", tmp_path / "model", "--direction", french, "--direction", other)
    assert trained.called(tmp_path, [(first, {"event": "TrainingProgress", "step": 5})]) == [-signal.SIGKILL]
    for changed in (["--direction", french], ["--direction", other, "--direction", french],
                    ["--direction", french, "--direction", f"en-nl:{tmp_path / 'de.tsv'}"]):
        code, _, said = call(*trained.arguments("--both-ways", tmp_path / "model", *changed, "--resume"))
        assert code == 2, said
    assert "regard train --direction en-fr:fr.tsv --direction en-de:de.tsv --both-ways" in call(
        "info", tmp_path / "model")[1]


@pytest.mark.thorough
def test_from_python(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(40, max_words=6)]
    other = trained.pairs(tmp_path / "more.tsv", 30)
    task = regard.train(None, tmp_path / "model", directions={"en-fr": pairs, "en-de": other}, both_ways=True,
                        validation={"en-fr": pairs[:3]}, settings=trained.TINY, device="cpu")
    assert [*map(str, task.directions)] == ["en-fr", "fr-en", "en-de", "de-en"]
    assert task.translate("the dog", to="fr", max_length=3).text is not None
    for wrong in ({"directions": {"en-en": pairs}}, {"directions": {}}, {"directions": {"en-fr": pairs}, "data": pairs},
                  {"directions": {"en-fr": pairs}, "validation": pairs}):
        with pytest.raises(ValueError, match=r"en-en|directions|data|validation"):
            regard.train(wrong.pop("data", None), tmp_path / "other", settings=trained.TINY, device="cpu", **wrong)
        assert not (tmp_path / "other").exists()


def learnable():
    """Sentences of three languages: French has its adjective after the noun, German is English with other vowels."""
    words = [("big", "gros"), ("red", "rouge"), ("old", "vieux"), ("sad", "triste")], [
        ("dog", "chien"), ("cat", "chat"), ("bird", "oiseau"), ("house", "maison"), ("tree", "arbre")], [
        ("sleeps", "dort"), ("falls", "tombe"), ("runs", "court"), ("waits", "attend")]
    for adjective, noun, verb, other in itertools.product(*words, words[1]):
        english = f"{adjective[0]} {noun[0]} {verb[0]} {other[0]}"
        yield english, f"{noun[1]} {adjective[1]} {verb[1]} {other[1]}", english.translate(GERMAN)


@pytest.mark.slow
def test_both_directions_are_learned(tmp_path):
    found = [*learnable()]
    settings = {**{key: value for key, value in DEMO_CHANGES.items() if not key.endswith("_lang")},
                "data.joint_tokenizer": True, "tokenizer.vocab_size": 320, "model.width": 32,
                "training.batches.max_tokens": 600, "training.schedule.max_steps": 400,
                "training.validation.every": 400, "training.validation.max_examples": 80}
    task = regard.train(None, tmp_path / "model", directions={
        "en-fr": [(english, french) for english, french, _ in found],
        "en-de": [(english, german) for english, _, german in found[::3]]}, both_ways=True, settings=settings,
        device="cpu")
    scores = next(entry["scores"] for entry in reversed(task.history) if "scores" in entry)
    assert min(scores[f"chrf/{name}"] for name in ("en-fr", "fr-en", "en-de", "de-en")) > 60, scores
    assert task.translate("red cat runs tree", to="fr").text == "chat rouge court arbre"
    assert task.translate("red cat runs tree", to="de").text == "rëd cät rüns trëë"
    assert task.translate("chat rouge court arbre", to="en").text == "red cat runs tree"


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="two trainings of minutes: REGARD_LONG=1")
def test_zero_shot_translation_is_into_the_right_language(tmp_path):
    """English backwards and English in ROT13 have no pairs with each other."""
    texts = [*dict.fromkeys(pair.source for pair in phrasebook.pairs(3000, seed=3, max_words=5))]
    codes = {"de": lambda text: " ".join(word[::-1] for word in text.split()),
             "fr": partial(codecs.encode, encoding="rot13")}
    known, new = texts[:-60], texts[-60:]
    pairs = {f"en-{code}": [(text, write(text)) for text in known[number::2]]
             for number, (code, write) in enumerate(codes.items())}
    scores = {}
    for zero_shot in (False, True):
        settings = {"training.rdrop": 0.0, "training.validation.every": 500, "training.validation.max_examples": 40}
        model = regard.train(None, tmp_path / str(zero_shot), directions=pairs, both_ways=True, zero_shot=zero_shot,
                             steps=1500, recipe="transformer-tiny", width=64, layers=2, vocab_size=800, lr=2e-3,
                             batch_tokens=1500, dropout=0.1, settings=settings)
        found = model.translate([codes["de"](text) for text in new], to="fr", beams=1)
        scores[zero_shot] = corpus_scores([one.text for one in found], [codes["fr"](text) for text in new]).chrf
    assert scores[True] > scores[False] + 15
