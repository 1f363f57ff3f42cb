"""Existing clients, unchanged: libretranslatepy, deep-translator, openai; and requests like those of argostranslate.

argostranslate itself needs PyQt and stanza, so only the requests of its API client are made here.
"""

import json
import urllib.parse
import urllib.request

import pytest
import texting

from regard.tasks.search import Beam

TEXT = "the dog sleeps."


@pytest.fixture(scope="module")
def want():
    return texting.translator().search([TEXT], Beam(beams=5))[0].text.strip()


def test_libretranslatepy(address, want):
    module = pytest.importorskip("libretranslatepy")
    client = module.LibreTranslateAPI(f"{address}/")
    assert client.translate(TEXT, "en", "fr") == want
    assert [one["code"] for one in client.languages()] == ["en", "fr"]
    assert client.detect("the dog sees the house")[0]["language"] == "en"
    keyed = module.LibreTranslateAPI(address, api_key="any")
    assert keyed.translate(TEXT, "en", "fr") == want
    assert [one["code"] for one in keyed.languages()] == ["en", "fr"]


def test_deep_translator(address, want):
    module = pytest.importorskip("deep_translator")
    client = module.LibreTranslator(source="en", target="fr", api_key="any", custom_url=f"{address}/")
    assert client.translate(TEXT) == want
    assert client.translate_batch([TEXT, TEXT]) == [want, want]


def test_requests_of_the_client_of_argostranslate(address, want):
    def send(path, **fields):
        request = urllib.request.Request(f"{address}/{path}", data=urllib.parse.urlencode(fields).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read().decode())

    assert send("translate", q=TEXT, source="en", target="fr") == {"translatedText": want}
    assert send("detect", q="le chien voit la maison")[0]["language"] == "fr"
    with urllib.request.urlopen(f"{address}/languages", timeout=30) as answer:
        assert json.loads(answer.read())[0]["targets"] == ["fr"]


def test_openai(address):
    module = pytest.importorskip("openai")
    client = module.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    assert [one.id for one in client.models.list()] == ["writer"]
    want = texting.completer().search(["the dog"], Beam(beams=1, length_penalty="none", max_length=12))[0]
    found = client.completions.create(model="writer", prompt="the dog", max_tokens=12, temperature=0)
    assert found.choices[0].text == want.text
    assert found.usage.completion_tokens == len(want.ids)
    parts = client.completions.create(model="writer", prompt="the dog", max_tokens=12, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == want.text
    asked = {"model": "writer", "prompt": "the dog", "max_tokens": 12, "seed": 2, "n": 2}
    texts = ["", ""]
    for part in client.completions.create(**asked, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [one.text for one in client.completions.create(**asked).choices]
    with pytest.raises(module.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(module.BadRequestError, match="/v1/completions"):
        client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "a"}])
    client.close()
