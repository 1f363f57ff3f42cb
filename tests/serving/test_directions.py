"""Which model serves a direction: several models, a model for several languages, codes with regions, names."""

import time

import pytest
import texting
import torch
from served import ask, catalog, form, save_translator, upload
from tiny import built, translating

from regard.data.languages import LanguagePair
from regard.data.tokenizer.training import add_controls
from regard.serving.engine import EngineCore
from regard.serving.models import ModelArgument, ModelCatalog, parse_model
from regard.serving.server import BackgroundServer
from regard.tasks.load import make_task
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import Beam, Sampling
from regard.tasks.traces import trace_translation

TEXT = "the dog sees a cat."
DIRECTIONS = ("en-fr", "fr-en", "en-de")


def several(seed=0):
    """An untrained translator for three directions."""
    both = add_controls(texting.joint(), ("<2fr>", "<2en>", "<2de>"))
    config = translating(source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both, record={"data": {"directions": list(DIRECTIONS)}})


@pytest.fixture(scope="module")
def task(_short_outputs):
    return several()


@pytest.fixture(scope="module")
def served(task, tmp_path_factory):
    """The address of a server of the model for three directions, and of one from Italian to English."""
    folder = tmp_path_factory.mktemp("several")
    task.save(folder / "many")
    models = [str(folder / "many"), save_translator(folder / "one", "it", "en")]
    with BackgroundServer(models, max_batch=16) as server:
        yield server


# Arguments and routing

def test_arguments_name_folders_and_directions(tmp_path):
    assert parse_model("models/a") == ("models/a", None)
    assert parse_model("en-fr=models/a") == ("models/a", LanguagePair("en", "fr"))
    assert parse_model("pt-BR-en=m") == ("m", LanguagePair("pt-BR", "en"))
    (tmp_path / "a=b").mkdir()
    assert parse_model(str(tmp_path / "a=b")) == (str(tmp_path / "a=b"), None)
    for wrong in ("en-fr=", "english=m", "en=m"):
        with pytest.raises(ValueError, match="MODEL"):
            parse_model(wrong)


def test_directions_are_found_by_language():
    models = catalog(completers=False)
    try:
        found = [models.route(*pair) for pair in (("en", "fr"), ("fr", "en"), ("EN_us", "fr-CA"))]
        assert [one.model.name for one in found] == ["one", "two", "one"]
        assert [one.to for one in found] == [None] * 3
        for pair in (("en", "en"), ("fr", "fr"), ("de", "fr"), ("", "fr")):
            with pytest.raises(ValueError, match="en-fr, fr-en"):
                models.route(*pair)
        assert [*models.directions_of("two")] == [LanguagePair("fr", "en")]
        assert models.identify_source("le chien voit la maison", "fr")[0] == "en"  # nothing else goes to French
        first = models.models[0]
        both = ModelCatalog([first, models.models[1]])
        assert both.directions[LanguagePair("en", "fr")].model is first
    finally:
        models.close()


def test_a_named_direction_is_the_only_one_and_must_be_of_the_model(task, tmp_path):
    task.save(tmp_path / "many")
    german = ModelCatalog.load([ModelArgument(str(tmp_path / "many"), LanguagePair("fr", "de"))])  # never trained
    try:
        assert [*german.directions] == [LanguagePair("fr", "de")]
        assert german.route("fr", "de").to == "de"
    finally:
        german.close()
    with pytest.raises(ValueError, match="fr, en, de") as refused:
        ModelCatalog.load([ModelArgument(str(tmp_path / "many"), LanguagePair("en", "it"))])
    assert str(tmp_path / "many") in str(refused.value)


# A model for several languages, over HTTP

def plain(task, texts, to):
    """What `regard translate --to` gives."""
    return [one.text for one in translate_with_placeholders(
        texts, lambda some: task.search(some, Beam(beams=5), to=to), lambda *pairs: task.align(*pairs, to=to))]


def test_every_language_has_its_targets(served):
    assert [(one["code"], one["targets"]) for one in ask(served.address, "/languages").json] == [
        ("en", ["fr", "de"]), ("fr", ["en"]), ("de", []), ("it", ["en"])]
    many, one = ask(served.address, "/api/v1/models").json
    assert [(pair["source"], pair["target"]) for pair in many["directions"]] == [
        ("en", "fr"), ("fr", "en"), ("en", "de")]
    assert (many["source"], many["target"], one["source"], one["target"]) == (None, None, "it", "en")
    info = [line for line in ask(served.address, "/metrics").body.decode().split("\n")
            if line.startswith("regard_model_info{")]
    assert sorted('source="en"' in line for line in info) == [False, False, True, True]


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("fr", "en"), ("en", "de"), ("en-GB", "FR")])
def test_each_direction_is_that_of_the_plain_call(served, task, source, target):
    texts = [TEXT, "", "a %s cat.\nthe dog"]
    found = ask(served.address, "/translate", {"q": texts, "source": source, "target": target})
    assert found.json == {"translatedText": plain(task, texts, target.lower())}
    sampled = ask(served.address, "/api/v1/translate", {
        "text": TEXT, "source": source, "target": target, "keep_placeholders": False, "sampling": {"seed": 4}}).json
    assert sampled["translations"][0]["text"] == task.search([TEXT], Sampling(seed=4), to=target.lower())[0].text
    assert (sampled["model"], sampled["source"], sampled["target"]) == ("many", source[:2], target.lower())


def test_directions_share_a_batch(task):
    """The target language is in the ids of the source, so texts of all directions run together."""
    core, strategy = EngineCore(task, 16, None, time.monotonic), Beam(beams=4)
    tickets = {to: core.submit(core.served.jobs([TEXT], strategy, to=to), None, None) for to in ("fr", "en", "de")}
    with torch.inference_mode():
        core.turn()
        assert len(core.batches) == 1
        while core.active:
            core.turn()
    found = {to: ticket.result(0)[0] for to, ticket in tickets.items()}
    for to, one in found.items():
        assert one.ids == task.search([TEXT], strategy, to=to)[0].ids
    assert len({one.score for one in found.values()}) == 3
    for wrong in ("it", None):
        with pytest.raises(ValueError, match="fr, en, de"):
            core.served.jobs([TEXT], strategy, to=wrong)


def test_alignment_glossary_prefix_and_files(served, task):
    fields = {"text": TEXT, "source": "en", "target": "de", "keep_placeholders": False, "align": True,
              "glossary": {"dog": "chien"}, "prefix": "le"}
    [found] = ask(served.address, "/api/v1/translate", fields).json["translations"]
    [want] = task.search([TEXT], Beam(beams=5), prefix="le", glossary={"dog": "chien"}, to="de")
    assert found["text"] == want.text
    table = task.align([TEXT], [want], to="de")[0].table()
    assert [(one["source"], one["target"]) for one in found["alignment"]["links"]] == [
        (one["source"], one["target"]) for one in table["links"]]
    url = ask(served.address, "/translate_file", **upload("a.txt", f"{TEXT}\n".encode(), source="en", target="de"))
    result = ask(served.address, url.json["translatedFileUrl"].removeprefix(served.address))
    assert "a.de.txt" in result.headers["content-disposition"]
    assert result.body.decode() == plain(task, [TEXT], "de")[0] + "\n"


def test_the_attention_page_is_of_the_chosen_direction(served, task):
    url = ask(served.address, "/api/v1/look", {"text": TEXT, "source": "en", "target": "de"}).json["url"]
    want = trace_translation(task.into("de"), TEXT)
    assert want.title.encode() in ask(served.address, url).body


def test_the_source_is_identified_among_those_that_lead_to_the_target(served):
    text = "le chien voit la maison et les oiseaux"
    found = ask(served.address, "/translate", **form(q=text, source="auto", target="en")).json
    assert found["detectedLanguage"]["language"] == "fr"
    found = ask(served.address, "/translate", **form(q=text, source="auto", target="de")).json
    assert found["detectedLanguage"]["language"] == "en"  # nothing else is translated into German


def test_a_model_by_name_needs_a_target_if_it_has_several(served):
    fields = {"text": TEXT, "keep_placeholders": False, "max_length": 8}
    named = ask(served.address, "/api/v1/translate", {**fields, "model": "one"}).json
    assert (named["source"], named["target"]) == ("it", "en")
    named = ask(served.address, "/api/v1/translate", {**fields, "model": "many", "target": "en"}).json
    assert (named["source"], named["target"]) == ("fr", "en")  # and not Italian, which is another model's
    missing = ask(served.address, "/api/v1/translate", {**fields, "model": "many"})
    assert (missing.status, "en-fr, fr-en, en-de" in missing.json["error"]) == (400, True)
    wrong = ask(served.address, "/api/v1/translate", {**fields, "model": "three"})
    assert (wrong.status, "many, one" in wrong.json["error"]) == (400, True)


def test_a_direction_that_nothing_serves_is_refused_with_those_that_there_are(served):
    for source, target in (("de", "en"), ("fr", "de"), ("en", "it"), ("xx", "fr")):
        found = ask(served.address, "/translate", {"q": TEXT, "source": source, "target": target})
        assert (found.status, "en-fr, fr-en, en-de, it-en" in found.json["error"]) == (400, True)


# Threads

def test_every_thread_computes_alone(tmp_path, monkeypatch):
    """OpenMP keeps a pool for each thread that ever used several, and all pools become slow together."""
    import regard.serving.models as served_models

    found, load = list[tuple[str, int]](), served_models.load

    def watched(folder, **options):
        found.append(("loading", torch.get_num_threads()))
        return load(folder, **options)

    monkeypatch.setattr(served_models, "load", watched)
    monkeypatch.setattr(EngineCore, "run", lambda core, worker: found.append(("engine", torch.get_num_threads())))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        folder = save_translator(tmp_path / "one", "en", "fr")
        for models in ([folder], [folder, save_translator(tmp_path / "two", "fr", "en")]):  # which share four threads
            found.clear()
            server = BackgroundServer(models)
            deadline = time.monotonic() + 30
            while len(found) < len(models) + 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert sorted(found) == [("engine", 1)] * 4 + [("loading", 1)] * len(models)
            assert torch.get_num_threads() == 4
            context = server.context
            assert context.inspection_pool.submit(torch.get_num_threads).result() == 1
            assert context.file_pool.submit(torch.get_num_threads).result() == 1
            context.close()
            server._socket.close()
    finally:
        torch.set_num_threads(before)
