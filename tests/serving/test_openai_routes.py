"""OpenAI's routes for language models: completions against the plain call, streams, stops, errors."""

import json

import pytest
import texting
from served import ask

from regard.tasks.search import GREEDY, Beam, Sampling

PROMPT = "the dog"
ASKED = {"model": "writer", "prompt": PROMPT, "max_tokens": 10, "temperature": 0}


def complete(address, **fields):
    found = ask(address, "/v1/completions", {**ASKED, **fields})
    assert found.status == 200, found.body
    return found.json


def stream(address, **fields):
    """The events of a stream."""
    found = ask(address, "/v1/completions", {**ASKED, "stream": True, **fields})
    assert found.headers["content-type"].startswith("text/event-stream")
    events = [one.removeprefix("data: ") for one in found.body.decode().split("\n\n") if one]
    assert events.pop() == "[DONE]"
    return [json.loads(one) for one in events]


def greedy(prompt=PROMPT, length=10):
    return texting.completer().search([prompt], Beam(beams=1, length_penalty="none", max_length=length))[0]


def test_the_models_are_listed(address):
    found = ask(address, "/v1/models").json
    assert (found["object"], [one["id"] for one in found["data"]]) == ("list", ["writer"])
    assert ask(address, "/v1/models/writer").json["id"] == "writer"
    missing = ask(address, "/v1/models/one")
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


def test_greedy_search_and_samples_are_those_of_the_plain_call(address):
    assert GREEDY.is_greedy
    found, want = complete(address), greedy()
    [choice] = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == (want.text, "length" if want.cut else "stop")
    assert found["usage"] == {"prompt_tokens": len(want.prompt_ids), "completion_tokens": len(want.ids),
                              "total_tokens": len(want.prompt_ids) + len(want.ids)}
    sampled = complete(address, temperature=0.9, top_p=0.8, n=3, seed=5, prompt=[PROMPT, "a cat"])["choices"]
    wanted = texting.completer().search([PROMPT, "a cat"], Sampling(num_samples=3, temperature=0.9, top_p=0.8, seed=5,
                                                                    max_length=10))
    assert [one["text"] for one in sampled] == [one.text for best in wanted for one in (best, *best.alternatives)]
    assert [one["index"] for one in sampled] == list(range(6))
    assert complete(address, echo=True)["choices"][0]["text"] == PROMPT + want.text


def test_log_probabilities(address):
    [choice], want = complete(address, logprobs=1)["choices"], greedy()
    logs = choice["logprobs"]
    assert len(logs["tokens"]) == len(logs["text_offset"]) == len(want.ids)
    assert logs["token_logprobs"] == pytest.approx(want.log_probabilities[:len(want.ids)], abs=1e-5)
    assert "".join(logs["tokens"]) == want.text


@pytest.mark.parametrize("fields", [
    {}, {"temperature": 1.0, "seed": 3}, {"prompt": [PROMPT, "a cat"]}, {"echo": True},
    {"temperature": 1.0, "seed": 3, "n": 3, "prompt": [PROMPT, "a cat"], "max_tokens": 20, "stop": "e"},
])
def test_a_stream_joins_to_the_whole(address, fields):
    events, whole = stream(address, **fields), complete(address, **fields)["choices"]
    for choice in whole:
        parts = [one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in parts) == choice["text"]
        assert [one["finish_reason"] for one in parts if one["finish_reason"]] == [choice["finish_reason"]]
    assert len({one["id"] for one in events}) == 1
    assert {one["choices"][0]["index"] for one in events} == {*range(len(whole))}
    for more in ({}, {"n": 2, "temperature": 1.0, "seed": 1}):
        usage = stream(address, stream_options={"include_usage": True}, **more)[-1]
        assert usage["choices"] == []
        assert usage["usage"] == complete(address, **more)["usage"]


def test_a_stop_ends_the_text_and_is_not_part_of_it(address):
    text = greedy(length=30).text
    stop = text[8:11]
    want = text[:text.index(stop)]
    [choice] = complete(address, max_tokens=30, stop=stop)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (want, "stop")
    events = [one["choices"][0] for one in stream(address, max_tokens=30, stop=[stop, "never there"])]
    assert ("".join(one["text"] for one in events), events[-1]["finish_reason"]) == (want, "stop")


@pytest.mark.parametrize(("fields", "status", "param"), [
    ({"model": "one"}, 404, "model"), ({"prompt": [1, 2]}, 400, "prompt"), ({"prompt": []}, 400, "prompt"),
    ({"n": 2}, 400, "n"), ({"stream": True, "logprobs": 1}, 400, "logprobs"), ({"suffix": "x"}, 400, "suffix"),
    ({"frequency_penalty": 1}, 400, "frequency_penalty"), ({"best_of": 3}, 400, "best_of"),
    ({"stop": ["a"] * 5}, 400, "stop"), ({"stop": ""}, 400, "stop"), ({"temperature": 3}, 400, "temperature"),
    ({"max_tokens": -1}, 400, "max_tokens"), ({"prompt": "x" * 3000}, 400, "prompt"), ({"prompt": ""}, 400, None),
])
def test_a_wrong_request_is_an_error_of_openai(address, fields, status, param):
    found = ask(address, "/v1/completions", {**ASKED, **fields})
    assert found.status == status, found.body
    error = found.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_a_chat_is_refused_with_the_reason(address):
    found = ask(address, "/v1/chat/completions", {"model": "writer", "messages": [{"role": "user", "content": "hi"}]})
    assert found.status == 400
    assert "/v1/completions" in found.json["error"]["message"]
