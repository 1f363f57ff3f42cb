"""Back-translation and distillation as a user calls them: what is trained on, what is refused, what is stored."""

import json
import re

import pytest
import trained
from calling import lines, tables

import regard
from regard.data import phrasebook
from regard.storage import folder as folders
from regard.tasks.completer import Completer, Completion
from regard.training import back_translation, defaults, distillation, synthesis
from regard.training.api import train as train_in_python
from regard.training.config import DataConfig
from regard.training.tasks import sentence_pairs
from regard.training.tasks.interface import SynthesisRequest, SyntheticPairs
from regard.training.train import train

TINY = {**trained.TINY, "tokenizer.vocab_size": 420, "data.filters.drop": ["empty"],  # nothing is learned in six steps
        "training.schedule.max_steps": 3, "data.source_lang": "en", "data.target_lang": "fr",
        "training.seed": 2}  # such a model repeats one token; with this seed it is one that can be printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs, text of both languages, and a model with its reverse model."""
    place = tmp_path_factory.mktemp("back")
    trained.pairs(place / "pairs.tsv")
    found = list(phrasebook.pairs(12, seed=5, max_words=6))
    (place / "mono.txt").write_text("".join(f"{pair.target}\n" for pair in found), encoding="utf-8")
    (place / "sources.txt").write_text("".join(f"{pair.source}\n" for pair in found), encoding="utf-8")
    return place


def run(folder, name, data="pairs.tsv", settings=TINY, **options):
    recorder = trained.Recorder()
    given = {key: str(folder / value) if key in ("reverse", "teacher", "keep") else value
             for key, value in options.items()}
    if "monolingual" in given:
        given["monolingual"] = (str(folder / given["monolingual"]),)
    result = train(trained.request(folder / data, folder / name, settings, synthesis=SynthesisRequest(**given)),
                   [recorder])
    return result, recorder


@pytest.fixture(scope="module")
def made(folder):
    return run(folder, "model", monolingual="mono.txt", keep="kept.tsv")


def test_a_model_of_real_and_synthetic_pairs(folder, made):
    result, recorder = made
    assert result.finished
    model, reverse = regard.load(folder / "model"), regard.load(folder / "model" / "reverse")
    assert (model.source_lang, model.target_lang) == ("en", "fr")
    assert (reverse.source_lang, reverse.target_lang) == ("fr", "en")
    assert model.record["data"]["pairs"] == 60
    assert model.record["data"]["synthetic_pairs"] == 12
    assert "12 synthetic pairs" in (folder / "model" / "README.md").read_text()
    assert [name.split()[0] for name in model.record["data"]["files"]] == ["pairs.tsv", "mono.txt"]
    assert any("17% of an epoch" in note for note in recorder.notes())  # 12 of 70: two are held out
    assert not (folder / "model" / "data").exists()


def test_the_tag_is_an_id_that_no_text_becomes(folder, made):
    model = regard.load(folder / "model")
    tokenizer = model.pair_tokenizer()
    tag = tokenizer.source.controls["<bt>"]
    assert tokenizer.controls == ()  # sources of users have none
    assert all(tag not in ids for ids in tokenizer.encode_sources(["<bt>", "<bt> I sleep.", "I sleep."]))
    assert tokenizer.target.decode(tokenizer.target.encode("<bt> I sleep.")) == "<bt> I sleep."


def test_synthetic_sources_alone_are_tagged(folder, tmp_path):
    (tmp_path / "synthetic.jsonl").write_text('{"source": "I sleep.", "target": "Je dors."}\n' * 3)
    config = DataConfig(filters=sentence_pairs.doctor.FilterConfig(drop=()), validation_fraction=0.1)
    survey = sentence_pairs.survey_pairs([str(folder / "pairs.tsv")], (), config)
    survey = sentence_pairs.with_back_translations(survey, SyntheticPairs(str(tmp_path / "synthetic.jsonl"), ()))
    survey = sentence_pairs.split_pairs(survey, config)
    prepared = sentence_pairs.prepare_pairs(survey, _tokenizer_config(), tmp_path / "data")
    tag, sources = prepared.tokenizer.source.control_id("<bt>"), prepared.store.sides[0]
    rows = [sources[number].tolist() for number in range(len(prepared.store))]
    real = sum(1 for _ in survey.part_pairs(survey.parts[0]))
    assert [tag in row for row in rows] == [False] * real + [True] * 3
    assert all(pair.part == 0 for pair in survey.validation_pairs(100))


def _tokenizer_config():
    from regard import config, toml
    from regard.data.tokenizer.training import TokenizerConfig

    return config.read_config(TokenizerConfig, toml.document_of({"tokenizer": {"kind": "characters"}}), ("tokenizer",))


def test_validation_targets_are_not_in_the_synthetic_pairs(folder, made, monkeypatch):
    """Held-out targets among the monolingual text, in other case and spacing, are left out."""
    seen = []
    monkeypatch.setattr(back_translation.synthesis, "write_pairs", lambda context, path, texts, *given, **options:
                        seen.extend(texts) or (_ for _ in ()).throw(KeyboardInterrupt))
    pairs = [line.split("\t") for line in (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    (folder / "all.txt").write_text("".join(f" {target.upper()}\n" for _, target in pairs), encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        run(folder, "leak", monolingual="all.txt", reverse="model/reverse")
    missing = {target for _, target in pairs if target.upper() not in seen}
    survey = sentence_pairs.survey_pairs([str(folder / "pairs.tsv")], (), DataConfig(
        filters=sentence_pairs.doctor.FilterConfig(drop=("empty",))))
    survey = sentence_pairs.split_pairs(survey, DataConfig(validation_fraction=0.04))
    assert missing == {pair.target for pair in survey.validation_pairs(100)}
    assert not (folder / "leak").exists()  # nothing was begun


def test_a_given_reverse_model_saves_a_stage(folder, made):
    result, recorder = run(folder, "again", monolingual="mono.txt", reverse="model/reverse", keep="again.tsv")
    assert result.finished
    assert [note[:12] for note in recorder.notes() if note.startswith("Stage")] == ["Stage 1 of 2", "Stage 2 of 2"]
    assert (folder / "again.tsv").read_bytes() == (folder / "kept.tsv").read_bytes()  # the same model, the same seed
    with pytest.raises(ValueError, match=r"fr-en|en-fr"):
        run(folder, "wrong", monolingual="mono.txt", reverse="model")
    assert not (folder / "wrong").exists()
    with pytest.raises(ValueError, match=r"kept\.tsv"):
        run(folder, "kept", monolingual="mono.txt", reverse="model/reverse", keep="kept.tsv")


def test_text_of_the_wrong_side_is_warned_of_and_none_is_refused(folder, made):
    _, recorder = run(folder, "side", monolingual="sources.txt", reverse="model/reverse")
    assert any("sources.txt" in event.text for event in recorder.of("Note") if event.warning)
    (folder / "blank.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"blank\.txt: .*2 blank"):
        run(folder, "blank", monolingual="blank.txt", reverse="model/reverse")
    assert not (folder / "blank").exists()


@pytest.mark.parametrize("options", [{"teacher": "model"}, {"monolingual": "mono.txt"}])
def test_lines_that_name_their_languages_are_refused(folder, made, options):
    lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    rows = "".join(f"{line}\ten\t{'fr' if number % 2 else 'de'}\n" for number, line in enumerate(lines))
    (folder / "rows.tsv").write_text(f"source\ttarget\tsource_lang\ttarget_lang\n{rows}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.tsv.*languages.*one direction"):
        run(folder, "no", "rows.tsv", **options)
    assert not (folder / "no").exists()


def test_a_training_is_not_resumed_without_its_options(folder, made):
    with pytest.raises(ValueError, match=r"--monolingual: mono\.txt is stored"):
        train(trained.request(folder / "pairs.tsv", folder / "model", TINY, resume=True))
    with pytest.raises(ValueError, match="reversed"):
        train(trained.request(folder / "pairs.tsv", folder / "model" / "reverse", TINY, resume=True))


def test_a_student_of_pairs_is_compared_with_its_teacher(folder, made):
    result, recorder = run(folder, "student", teacher="model", keep="student.tsv")
    assert result.finished
    scores = regard.load(folder / "student").record["scores"]
    assert set(scores["teacher"]) == {"bleu", "chrf"}
    assert "| teacher BLEU |" in (folder / "student" / "README.md").read_text()
    assert any(note.startswith("Student:") for note in recorder.notes())
    held = {pair for pair, _ in _held_out(folder)}
    kept = [line.split("\t")[0] for line in (folder / "student.tsv").read_text(encoding="utf-8").splitlines()]
    sources = {line.split("\t")[0] for line in (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()}
    assert held
    assert {*kept} == sources - held
    teacher = regard.load(folder / "model")
    assert dict(line.split("\t") for line in (folder / "student.tsv").read_text(encoding="utf-8").splitlines())[
        kept[0]] == synthesis._one_line(teacher.translate(kept[0], beams=5).text)


def shown(folder):
    """What `regard info` and the model card say."""
    return " ".join("\n".join(lines("info", folder)).split()), (folder / "README.md").read_text(encoding="utf-8")


def test_a_student_names_its_teacher_and_the_files_of_the_user(folder, made):
    run(folder, "student-of-pairs", teacher="./model/../model")
    data = regard.load(folder / "student-of-pairs").record["data"]
    assert (data["teacher"], data["training_examples"], data["validation_examples"]) == ("model", 58, 2)
    assert [name.split()[0] for name in data["files"]] == ["pairs.tsv"]
    for text in shown(folder / "student-of-pairs"):
        assert re.search(r"Teacher.* `?model`?", text)
        assert "58 training pairs (translated by the teacher), 2 validation pairs" in text
        assert "2 pairs held out" in text
        assert ".jsonl" not in text
    trained.pairs(folder / "dev.tsv", 2, seed=3)
    for name, given in (("sources.txt", 12), ("pairs.tsv", 60)):
        train(trained.request(folder / name, folder / f"student-{given}", TINY, validation=(str(folder / "dev.tsv"),),
                              synthesis=SynthesisRequest(teacher=str(folder / "model"))))
        for text in shown(folder / f"student-{given}"):
            assert f"{given} training pairs (translated by the teacher), 2 validation pairs" in text
            assert "(2 pairs): " in text
            assert "dev.tsv" in text
            assert ".jsonl" not in text
    [table] = tables("info", folder / "student-60")
    assert (table["teacher"], table["files"]) == ("model", ["pairs.tsv", "dev.tsv"])
    assert (table["training_examples"], table["validation_examples"]) == (60, 2)


@pytest.mark.parametrize(("width", "small"), [(16, False), (8, True)])
def test_a_student_as_large_as_its_teacher_is_warned_of(folder, made, width, small):
    name = f"student-of-width-{width}"
    _, recorder = run(folder, name, settings={**TINY, "model.width": width}, teacher="model")
    sizes = [regard.load(folder / one).config.parameters() for one in (name, "model")]
    assert (sizes[0] <= sizes[1] / 2) == small
    found = [event.text for event in recorder.of("Note") if event.warning and f"{sizes[1]:,}" in event.text]
    assert len(found) == (not small)
    assert all(f"{sizes[0]:,} parameters" in text for text in found)
    started = [type(event).__name__ for event in recorder.told].index("TrainingStarted")
    assert all(event in recorder.told[:started] for event in recorder.of("Note") if event.text in found)


def test_training_and_validation_pairs_are_counted_apart(folder, made):
    for text in shown(folder / "model"):
        assert "58 training pairs, 12 synthetic pairs (by a reverse model), 2 validation pairs" in text
        assert ".jsonl" not in text


def _held_out(folder):
    survey = sentence_pairs.survey_pairs([str(folder / "pairs.tsv")], (), DataConfig(
        filters=sentence_pairs.doctor.FilterConfig(drop=("empty",))))
    survey = sentence_pairs.split_pairs(survey, DataConfig(validation_fraction=0.04))
    return [(pair.source, pair.target) for pair in survey.validation_pairs(100)]


def test_a_file_of_sources_in_another_language_is_refused(folder, made):
    """TINY sets both languages, so it is told what the file is."""
    settings = {key: value for key, value in TINY.items() if not key.endswith("_lang")}
    (folder / "lines.de").write_text("Guten Tag.\n" * 3)
    with pytest.raises(ValueError, match=r"lines\.de: .*German.*--teacher .*model.*en-fr.*--languages"):
        run(folder, "no", "lines.de", settings, teacher="model")
    assert not (folder / "no").exists()
    with pytest.raises(ValueError, match=r"--teacher .*model: .*en-fr.*fr-en"):
        run(folder, "no", "lines.de", settings | {"data.source_lang": "fr", "data.target_lang": "en"}, teacher="model")
    (folder / "lines.en").write_text((folder / "sources.txt").read_text())
    assert run(folder, "of-lines", "lines.en", settings, teacher="model")[0].finished


def test_a_teacher_must_be_a_translator_of_this_direction(folder, made, tmp_path):
    with pytest.raises(ValueError, match=r"--teacher .*reverse: .*fr-en"):
        run(folder, "no", teacher="model/reverse")
    other = regard.task("gpt-tiny", vocab_size=300)
    other.save(tmp_path / "gpt")
    with pytest.raises(ValueError, match="gpt"):
        train(trained.request(folder / "pairs.tsv", folder / "no", TINY,
                              synthesis=SynthesisRequest(teacher=str(tmp_path / "gpt"))))
    with pytest.raises(folders.FolderError):
        run(folder, "no", teacher="missing")
    (folder / "exported").mkdir()
    (folder / "exported" / "model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"--teacher .*exported: .*CTranslate2"):
        run(folder, "no", teacher="exported")
    assert not (folder / "no").exists()


@pytest.fixture(scope="module")
def several(folder):
    """A model for several languages."""
    train(trained.request(folder / "pairs.tsv", folder / "several", TINY, both_ways=True))


WITHOUT_LANGUAGES = {key: value for key, value in TINY.items() if not key.endswith("_lang")}


@pytest.mark.parametrize("options", [{"teacher": "several"}, {"monolingual": "mono.txt", "reverse": "several"}])
def test_a_writer_of_several_languages_needs_those_of_the_data(folder, several, options):
    """It writes in the right one; if that is not known, nothing begins."""
    expected = regard.load(folder / "several").into("fr" if "teacher" in options else "en")
    for settings, words in ((WITHOUT_LANGUAGES, "--languages"), ({**TINY, "data.source_lang": "de",
                                                                  "data.target_lang": "es"}, "en")):
        with pytest.raises(ValueError, match=rf"--\w+ .*several: .*fr, en.*{words}"):
            run(folder, "no", settings=settings, **options)
        assert not (folder / "no").exists()
    name = f"with-{next(iter(options))}"
    result, _ = run(folder, name, keep=f"{name}.tsv", **options)
    assert result.finished
    rows = [line.split("\t") for line in (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows
    if "teacher" in options:
        assert rows[0][1] == synthesis._one_line(expected.translate(rows[0][0], beams=5).text)
        assert set(regard.load(folder / name).record["scores"]["teacher"]) == {"bleu", "chrf"}


def test_in_python_with_texts_in_memory(folder, made, tmp_path):
    settings = {key: value for key, value in TINY.items() if not key.endswith("_lang")}
    texts = (folder / "sources.txt").read_text(encoding="utf-8").splitlines()
    student = train_in_python(texts, tmp_path / "student", settings={**settings, "data.filters.drop": []},
                              teacher=folder / "model", device="cpu")
    assert (student.source_lang, student.target_lang) == ("en", "fr")  # those of the teacher
    assert "teacher" not in student.record["scores"]  # there is no reference
    model = train_in_python(folder / "pairs.tsv", tmp_path / "model", settings=settings, device="cpu",
                            monolingual=["Je dors.", "Il dort."], reverse=folder / "model" / "reverse")
    assert model.record["data"]["synthetic_pairs"] == 2
    assert "monolingual.txt" in json.dumps(model.record["data"]["files"])


def test_the_default_student_has_a_deep_encoder():
    tables = regard.models.catalog.find_recipe("transformer-student").tables["model"]
    assert tables["encoder"]["layers"] > tables["decoder"]["layers"] == 1


def test_scores_are_shown_side_by_side():
    text = distillation.compare_scores({"loss": 1.0, "bleu": 10.0, "chrf": 20.0}, {"bleu": 30.0, "chrf": 40.0})
    assert text.index("10.00") < text.index("20.00") < text.index("30.00") < text.index("40.00")


def test_a_teacher_translates_sampled_sources_too(folder, made):
    result, recorder = run(folder, "student-of-sampled", "sources.txt", teacher="model", sampled_sources=25,
                           keep="sampled.tsv")
    assert result.finished
    given = (folder / "sources.txt").read_text(encoding="utf-8").splitlines()
    sources = [line.split("\t")[0] for line in (folder / "sampled.tsv").read_text(encoding="utf-8").splitlines()]
    assert sources[:len(given)] == given
    assert len(sources) == len({*sources}) == len(given) + 25
    assert any("Sampled 25 new sources" in note for note in recorder.notes())


def test_on_a_cpu_nothing_is_sampled_unasked(folder, made):
    _, recorder = run(folder, "student-of-given", teacher="model", keep="given.tsv")
    given = {line.split("\t")[0] for line in (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()}
    assert {line.split("\t")[0] for line in (folder / "given.tsv").read_text(encoding="utf-8").splitlines()} <= given
    assert not any("Sampled" in note for note in recorder.notes())


LANGUAGE_MODEL = {"recipe": "llama-tiny", "tokenizer.vocab_size": 420, "training.schedule.max_steps": 3}


def test_a_language_model_writes_half_of_the_new_sources(folder, made, monkeypatch):
    monkeypatch.setattr(defaults, "MODELLING_DEVICES", ("cpu",))
    monkeypatch.setattr(defaults, "MIN_MODELLED_SOURCES", 1)
    monkeypatch.setattr(distillation, "LANGUAGE_MODEL", LANGUAGE_MODEL)
    monkeypatch.setattr(distillation, "SAMPLED_TOKENS", 20)
    lines = iter(range(10**6))
    sampled = []

    def sample(completer, prompt, **options):
        """Texts of several lines; the last line of each is unfinished."""
        assert completer.model.training is False
        sampled.append((prompt, options["num_samples"]))
        written = ["A new cat.", f"He{next(lines) * 'e'}.", "", "\x00", "\ufffd", 999 * "a", "unfinished"]
        return Completion("\n".join(written), 0.0, (), cut=True)

    monkeypatch.setattr(Completer, "sample", sample)
    result, recorder = run(folder, "student-of-modelled", "sources.txt", teacher="model", sampled_sources=10,
                           keep="modelled.tsv")
    assert result.finished
    sources = [line.split("\t")[0] for line in (folder / "modelled.tsv").read_text(encoding="utf-8").splitlines()]
    assert sources[-5:] == ["A new cat.", "He.", "Hee.", "Heee.", "Heeee."]
    assert len(sources) == len({*sources}) == 12 + 10
    assert sampled == [("\n", 5)] * 4
    assert any("Stage 1 of 3" in note for note in recorder.notes())
    assert any("10 new sources from an n-gram model and a language model" in note for note in recorder.notes())
    assert not (folder / "student-of-modelled" / "data").exists()


@pytest.mark.parametrize(("given", "expected"), [((29_000, 900_000, "cuda"), 450_000), ((9_000, 900_000, "cuda"), 0),
                                                 ((29_000, 900_000, "cpu"), 0), ((29_000, 0, "cuda"), 0)])
def test_how_many_sources_a_language_model_writes(given, expected):
    assert defaults.language_model_sources(*given) == expected


@pytest.mark.parametrize(("given", "expected"), [((29_000, "cuda"), 871_000), ((10**6, "cuda"), 0), ((50, "cpu"), 0)])
def test_how_many_sources_are_sampled_by_default(given, expected):
    assert defaults.sampled_sources(*given) == expected


@pytest.mark.parametrize("options", [{"sampled_sources": 5, "monolingual": ("m.txt",)},
                                     {"sampled_sources": -1, "teacher": "t"},
                                     {"sampled_sources": True, "teacher": "t"}])
def test_sampled_sources_need_a_teacher_and_a_number(options, tmp_path):
    with pytest.raises(ValueError, match="sampled"):
        synthesis.check_synthesis(trained.request("pairs.tsv", tmp_path / "m", synthesis=SynthesisRequest(**options)))
