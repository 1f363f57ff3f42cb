"""The options of a translation: each reaches the library, and what does not go together is one message."""

import json

import ending
import pytest
import texting
from asking import without_attention
from calling import call, lines, tables

import regard
from regard.data.sources.formats import read_pairs
from regard.tasks.glossary import Glossary
from regard.tasks.placeholder_translation import translate_with_placeholders

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translating") / "model"
    ending.translator().save(place)
    return place


@pytest.fixture
def terms(tmp_path):
    (tmp_path / "terms.tsv").write_text("dog\tchameau\ncat\thomme\n")
    return tmp_path / "terms.tsv"


def shown(folder, ask):
    """The lines of what is asked of the translator in a folder."""
    task = regard.load(folder)
    return [one.text for one in translate_with_placeholders(TEXTS, lambda texts: ask(task, texts), task.align)]


@pytest.mark.parametrize(("options", "asked"), [
    (["--sample"], {}), (["--sample", "--seed", "7"], {"seed": 7}),
    (["--sample", "--temperature", "0.7", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.01", "--seed", "3"],
     {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 3}),
    (["--sample", "--max-length", "4", "--min-length", "2", "--no-repeat-ngram-size", "1", "--prefix", "le"],
     {"max_length": 4, "min_length": 2, "no_repeat_ngram_size": 1, "prefix": "le"}),
])
def test_samples(folder, options, asked):
    want = shown(folder, lambda task, texts: task.sample(texts, **asked))
    assert lines("translate", folder, *TEXTS, *options) == want
    assert lines("translate", folder, *options, stdin="\n".join(TEXTS[::-1])) == want[::-1]  # whatever is beside it


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "asked"), [
    (["--max-length", "5"], {"max_length": 5}), (["--min-length", "7"],
                                                 {"min_length": 7}), (["--no-repeat-ngram-size", "2"],
                                                                      {"no_repeat_ngram_size": 2}),
    (["--prefix", "un gros"], {"prefix": "un gros"}), (["--length-penalty", "none"], {"length_penalty": "none"}),
    (["--length-penalty", "0.6", "--beam", "3"], {"length_penalty": 0.6, "beams": 3}),
    (["--coverage-penalty", "0.3"], {"coverage_penalty": 0.3}),
    (["--beam", "4", "--num-beam-groups", "2", "--diversity-penalty", "2"], {"beams": 4, "num_beam_groups": 2,
                                                                             "diversity_penalty": 2.0}),
])
def test_searches(folder, options, asked):
    assert lines("translate", folder, *TEXTS, *options) == shown(
        folder, lambda task, texts: task.translate(texts, **asked))


def test_several_samples_of_each(folder):
    found = regard.load(folder).sample(TEXTS[0], num_samples=3, seed=5)
    got = tables("translate", folder, TEXTS[0], "--sample", "-n", "3", "--seed", "5", "--scores")[0]
    assert [got["text"], *(one["text"] for one in got["alternatives"])] == [
        one.text for one in (found, *found.alternatives)]
    assert got["score"] == pytest.approx(sum(found.log_probabilities))


@pytest.mark.thorough
def test_most_alike(folder):
    search = regard.Sampling(num_samples=6, seed=2)
    want = shown(folder, lambda task, texts: task.mbr(texts, search))
    assert lines("translate", folder, *TEXTS, "--mbr", "6", "--seed", "2") == want
    assert lines("translate", folder, *TEXTS, "--mbr", "6", "--seed", "2", "--sample") == want
    first = tables("translate", folder, TEXTS[0], "--mbr", "6", "--seed", "2", "--scores")[0]
    assert first["score"] == pytest.approx(regard.load(folder).mbr(TEXTS[0], search).score)
    assert lines("translate", folder, *TEXTS, "--mbr", "4", "--beam", "6") == shown(
        folder, lambda task, texts: task.mbr(texts, regard.Beam(beams=6, nbest=4)))


def test_a_glossary(folder, terms):
    found = lines("translate", folder, *TEXTS, "--glossary", terms)
    for text, line in zip(TEXTS, found, strict=True):
        assert all(term.appears_in(line) for term in Glossary.read(terms).found(text))
    assert found == shown(folder, lambda task, texts: task.translate(texts, glossary=Glossary.read(terms)))
    terms.write_text("dog\tchien\nbad\n")
    code, out, said = call("translate", folder, *TEXTS, "--glossary", terms)
    assert (code, out) == (2, "")
    assert said.startswith(f"Error: {terms}:2: 1 column instead of 2")
    code, out, said = call("translate", folder, *TEXTS, "--glossary", "no such file")
    assert (code, out) == (2, "")
    assert "no such file" in said


def test_a_glossary_with_placeholders_that_texts_do_not_have(folder, terms):
    terms.write_text("dog\tchien\ndog\tle {dog}\n")
    code, out, said = call("translate", folder, *TEXTS, "--glossary", terms)
    assert (code, out) == (2, "")
    assert said.startswith("Error: --glossary ")
    assert "'le {dog}'" in said
    assert call("translate", folder, *TEXTS, "--glossary", terms, "--scores")[0] == 0
    terms.write_text("open %s\touvrir %s\n")
    assert call("translate", folder, *TEXTS, "--glossary", terms)[0] == 0


def test_a_prefix_comes_once(tmp_path):
    without_attention().save(tmp_path / "model")  # a text with placeholders goes piece by piece
    (found,) = lines("translate", tmp_path / "model", "the dog %s sees {x} a cat", "--prefix", "Voilà",
                     "--max-length", "12")
    assert found.startswith("Voilà")
    assert found.count("Voilà") == 1
    assert found.index("%s") < found.index("{x}")


def test_an_alignment_needs_a_model_that_looks(tmp_path):
    without_attention().save(tmp_path / "model")
    code, out, said = call("translate", tmp_path / "model", *TEXTS, "--align")
    assert (code, out) == (2, "")
    assert "--align needs a model with cross-attention" in said


WRONG = [
    (["--temperature", "0.5"], "--temperature has no effect here"),
    (["--top-k", "5", "--seed", "1"], "--top-k and --seed have no effect here"),
    (["--sample", "--beam", "3", "--coverage-penalty", "1"], "--beam and --coverage-penalty have no effect here"),
    (["--sample", "--glossary", "TERMS"], "--glossary has no effect here"),
    (["--diversity-penalty", "1"], "--diversity-penalty needs --num-beam-groups"),
    (["--sample", "--temperature", "0"], "`temperature` must be a number above 0"),
    (["--mbr", "4", "--nbest", "5"], "--nbest 5 needs --mbr 5"),
    (["--mbr", "9", "--beam", "4"], "--mbr 9 needs --beam 9"),
    (["--mbr", "9", "--beam", "9", "--seed", "4"], "--seed has no effect here"),
    (["--beam", "2", "--nbest", "3"], "--nbest 3 needs --beam 3"),
    (["--quantization", "int8"], "--engine ctranslate2"),
    (["--engine", "onnx"], '`--engine` must be one of "torch", "ctranslate2"'),
    (["--engine", "ctranslate2", "--scores"], "need --engine torch"),
    (["--engine", "ctranslate2", "--align"], "need --engine torch"),
    (["--engine", "ctranslate2", "--sample"], "`sampling` must be left out with CTranslate2"),
    (["--engine", "ctranslate2", "--mbr", "4", "--beam", "4"], "`mbr` must be left out with CTranslate2"),
    (["--engine", "ctranslate2", "--glossary", "TERMS"], "`glossary` must be left out with CTranslate2"),
    (["--engine", "ctranslate2", "--coverage-penalty", "1"], "`coverage_penalty` must be left out with CTranslate2"),
    (["--engine", "ctranslate2", "--beam", "4", "--num-beam-groups", "2"],
     "`num_beam_groups` must be left out with CTranslate2"),
    (["--engine", "ctranslate2", "--length-penalty", "0.6"], '`length_penalty` must be "none" or "mean"'),
    (["--engine", "ctranslate2", "--quantization", "int3"], "`--quantization` must be one of"),
    (["--mbr", "4", "--length-penalty", "mean"], "--length-penalty has no effect here. --mbr"),
    (["--mbr", "4", "--glossary", "TERMS"], "--glossary has no effect here. --mbr"),
    (["--source", "1", "--target", "2"], "--source and --target choose"),
    (["--entries", "missing"], "--entries chooses"),
    (["--prefix", "un %s"], "has 'un %s'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_does_not_go_together(folder, terms, options, message):
    if "ctranslate2" in options:
        pytest.importorskip("ctranslate2")
    given = [terms if option == "TERMS" else option for option in options]
    code, out, said = call("translate", folder, *TEXTS, *given)
    assert (code, out) == (2, "")
    (error,) = said.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert not (folder / "ctranslate2").exists()


def test_a_pipe_has_no_columns_and_no_entries(folder):
    for options, message in ((["--source", "1", "--target", "2"], "--source and --target choose"),
                             (["--entries", "missing"], "--entries chooses")):
        for texts in ([], ["-"], ["the dog"]):
            code, out, said = call("translate", folder, *texts, *options, stdin="the dog\n")
            assert (code, out) == (2, "")
            assert said.startswith(f"Error: {message}")


def test_an_engine_that_cannot_hold_the_model(tmp_path):
    texting.translator(mixer="rotary").save(tmp_path / "model")
    code, out, said = call("translate", tmp_path / "model", *TEXTS, "--engine", "ctranslate2")
    assert (code, out) == (2, "")
    assert said.startswith("Error: CTranslate2 cannot run this model")
    assert "model.decoder.mixer.position: " in said


def test_a_glossary_that_does_not_fit_is_named_with_the_text(folder, terms):
    code, out, said = call("translate", folder, "Emma sees.", "Emma sees a cat.", "--glossary", terms, "--max-length",
                           "1")
    assert code == 1
    assert out.count("\n") == 2
    assert said.startswith("Error: text 2: `glossary` must be terms that fit into a translation, here into 1 token,")
    assert "for 'cat' of 'Emma sees a cat.'" in said


def test_another_engine(folder, tmp_path):
    pytest.importorskip("ctranslate2")
    ending.translator().save(tmp_path / "model")
    options = ["--beam", "1", "--max-length", "9"]  # a limit that is not given is another one there
    code, out, said = call("translate", tmp_path / "model", *TEXTS, "--engine", "ctranslate2", *options)
    assert (code, out.split("\n")) == (0, [*lines("translate", folder, *TEXTS, *options), ""])
    assert said.count("\n") == 1
    assert "float32" in said
    assert str(tmp_path / "model" / "ctranslate2") in said
    for more in (["--prefix", "un gros"], ["--no-repeat-ngram-size", "2", "--min-length", "4"]):
        found = lines("translate", tmp_path / "model", *TEXTS, "--engine", "ctranslate2", *options, *more)
        assert found == lines("translate", folder, *TEXTS, *options, *more)
    code, _, said = call("translate", tmp_path / "model", "no", "--engine", "ctranslate2", "--quantization", "int8")
    assert (code, said.count("int8")) == (0, 1)


@pytest.mark.thorough
def test_a_file_goes_on_only_with_all_the_same_options(folder, terms, tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"
    path.write_text("the big dog sleeps.\t\nEmma sees a cat.\t\n")
    options = ["-o", tmp_path / "b.tsv", "--beam", "2", "--glossary", terms, "--prefix", "un"]

    def stopped(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(regard.Translator, "search", stopped)
    assert call("translate", folder, path, *options)[0] == 130
    monkeypatch.undo()
    for others, message in ((["--beam", "3"], "beams was 2 and is 3"), (["--seed", "3", "--sample"], "search was beam"),
                            (["--prefix", "une"], "prefix was un and is une"),
                            (["--min-length", "3"], "min_length was 0 and is 3"),
                            (["--no-repeat-ngram-size", "4"], "no_repeat_ngram_size was not set and is 4"),
                            (["--coverage-penalty", "1"], "coverage_penalty was not set and is 1.0")):
        kept = [] if "--sample" in others else ["--beam", "2", "--glossary", terms, "--prefix", "un"]
        code, _, said = call("translate", folder, path, "-o", tmp_path / "b.tsv", *kept, *others)
        assert (code, said.count("\n")) == (2, 1)
        assert "other settings: " in said
        assert message in said
    before = terms.read_text()
    terms.write_text("dog\tchien\n")
    assert "glossary was" in call("translate", folder, path, *options)[2]
    terms.write_text(before)
    assert call("translate", folder, path, *options) == (0, "", "")
    assert [pair.target.startswith("un") for pair in read_pairs([tmp_path / "b.tsv"])] == [True, True]


def test_json_of_samples_is_one_object_a_line(folder):
    code, out, _ = call("translate", folder, *TEXTS, "--sample", "--json")
    assert code == 0
    assert [json.loads(line)["source"] for line in out.splitlines()] == TEXTS


@pytest.mark.parametrize("code", ["fr", "de"])
def test_a_model_of_one_direction_refuses_a_language(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texting.translator().save("unnamed")
    task = regard.load("unnamed")
    task.source_lang, task.target_lang = "en", "fr"
    task.save("model")
    write_pairs(tmp_path / "test.tsv", texting.pairs(3))
    for command in (["translate", "model", TEXTS[0]], ["look", "model", TEXTS[0], "--terminal"],
                    ["look", "model", "--heads", "test.tsv"], ["evaluate", "model", "test.tsv"],
                    ["compare", "model", "model", "test.tsv"]):
        status, out, said = call(*command, "--to", code)
        assert (status, out, said.count("\n")) == (2, "", 1), command
        assert all(part in said for part in ("model", "--to", "en-fr")), said


def test_a_language_that_a_model_does_not_know_is_named_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texting.translator(pair=texting.several).save("model")
    write_pairs(tmp_path / "test.tsv", texting.pairs(3))
    for command in (["translate", "model", TEXTS[0]], ["look", "model", TEXTS[0], "--terminal"],
                    ["look", "model", "--heads", "test.tsv"], ["evaluate", "model", "test.tsv"],
                    ["compare", "model", "model", "test.tsv"]):
        status, out, said = call(*command, "--to", "xx")
        assert (status, out, said.count("\n")) == (2, "", 1), command
        assert all(part in said for part in ("--to", '"xx"', "fr, de")), said


def test_a_comparison_with_a_model_for_several_languages_takes_a_language(tmp_path):
    for name, task in (("several", texting.translator(pair=texting.several)), ("single", texting.translator())):
        task.save(tmp_path / name)
    write_pairs(tmp_path / "test.tsv", texting.pairs(3))
    single = regard.load(tmp_path / "single")
    single.target_lang = "fr"
    single.save(tmp_path / "single-fr")
    options = [tmp_path / "test.tsv", "--to", "fr", "--beam", "1", "--json"]
    code, out, _ = call("compare", tmp_path / "several", tmp_path / "single-fr", *options)
    assert (code, json.loads(out)["pairs"]) == (0, 3)


def write_pairs(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
