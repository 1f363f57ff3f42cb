"""What a client may send that is not a request: too much, too slow, too deep, not text; the server lives on."""

import contextlib
import gzip
import json
import socket
import threading
import time
import urllib.parse

import psutil
import pytest
from served import ask, catalog, eventually, form, raw, upload

from regard.serving.engine import ServingEngine
from regard.serving.server import BackgroundServer

FIELDS = {"q": "a cat.", "source": "en", "target": "fr"}
HOST = b"Host: localhost\r\n"
JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def _lives_on(address):
    yield
    assert ask(address, "/health").status == 200


@pytest.mark.parametrize(("body", "headers", "status"), [
    (b"[" * 100_000, JSON, 413), (b"[" * 80_000, JSON, 400), (b'{"q":' * 2_000 + b"1" + b"}" * 2_000, JSON, 400),
    (b'{"q": ["a", [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}', JSON, 400), (b'{"q": "\xff"}', JSON, 400), (b"", JSON, 400),
    (b'{"q": NaN}', JSON, 400), (b'{"q": ' + b"9" * 5000 + b"}", JSON, 400), (b"\0\0", JSON, 400),
    (b"q=%ff&source=en&target=fr", {"content-type": "application/x-www-form-urlencoded"}, 400),
    (b"&".join([b"a=1"] * 5000), {"content-type": "application/x-www-form-urlencoded"}, 400),
    (gzip.compress(b'{"q": "' + b"a" * 100_000_000 + b'"}'), {**JSON, "content-encoding": "gzip"}, (413, 415)),
    (b"x", {"content-type": "multipart/form-data"}, 400),
    (b"x", {"content-type": "multipart/form-data; boundary=b"}, 400),
    (b"x", {"content-type": "text/plain"}, 415), (b"<xml/>", {"content-type": "application/xml"}, 415),
])
def test_bodies_that_are_no_requests(address, body, headers, status):
    found = ask(address, "/translate", body, headers=headers)
    assert found.status in (status if isinstance(status, tuple) else (status,)), found.body
    assert "error" in found.json


@pytest.mark.parametrize("text", ["a\0cat", "\x01\x1b[31m", "\u2028 a \u0085", "\ufeff", "\U0010ffff", "a" * 100,
                                  "\u202ecat", "</s><pad>", "%" * 50, "<" * 50, "{" * 50])
def test_texts_that_are_strange_but_text(address, text):
    for kind in ("text", "html"):
        found = ask(address, "/translate", {**FIELDS, "q": text, "format": kind})
        assert found.status == 200, found.body


def test_half_a_character_in_an_escape_is_refused(address):
    for text in (b'"\\ud800"', b'["\\udc00"]'):
        body = b'{"q": %s, "source": "en", "target": "fr"}' % text
        assert ask(address, "/translate", body, headers=JSON).status == 400
    pair = b'{"q": "\\ud83d\\ude00", "source": "en", "target": "fr"}'
    assert ask(address, "/translate", pair, headers=JSON).status == 200


def test_a_hundred_megabytes_are_refused_before_they_are_read(address):
    """With a length that says so, and in chunks; memory does not grow."""
    process, before = psutil.Process(), psutil.Process().memory_info().rss
    head = b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    assert b" 413 " in raw(address, head + b"Content-Length: 104857600\r\n\r\n").split(b"\r\n")[0]
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    parts = urllib.parse.urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        found = b""
        try:
            for _ in range(1600):
                connection.sendall(chunk)
        except ConnectionError:
            pass
        else:
            pytest.fail("all of it was read")
        with contextlib.suppress(ConnectionError):
            found = connection.recv(1000)
    assert not found or b" 413 " in found
    assert process.memory_info().rss - before < 40 << 20
    assert ask(address, "/translate", b"x" * 120_000, headers=JSON).status == 413


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n" + HOST,                                                             # never an end
    b"",                                                                                      # nothing at all
    b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n{",                   # a body that stops
])
def test_a_slow_client_is_not_waited_for(address, data):
    begun = time.monotonic()
    found = raw(address, data, seconds=60)
    assert time.monotonic() - begun < 55  # the server waits 1.5 s; here other programs may run between
    assert not found or b" 408 " in found


def test_a_client_that_sends_a_byte_now_and_then_is_not_waited_for(address):
    parts = urllib.parse.urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begun < 60:
                connection.sendall(b"G")
                time.sleep(0.1)
    assert time.monotonic() - begun < 55


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X-%d: a\r\n" % number for number in range(10_000)) + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
])
def test_headers_that_flood_or_are_none(address, data):
    found = raw(address, data, seconds=1)
    assert not found or b" 4" in found.split(b"\r\n")[0], found[:100]


@pytest.mark.parametrize("name", ["../../../etc/passwd.txt", "..\\..\\a.txt", "/etc/cron.d/x.txt",
                                  "a\\r\\nX-Evil: 1.txt", "%2e%2e%2fa.txt",
                                  "a" * 5000 + ".txt", ".txt", "con.txt", "a;b=c.txt", "-rf.txt"])
def test_names_of_files_are_never_paths(address, server, name):
    found = ask(address, "/translate_file", **upload(name, b"a cat.\n", source="en", target="fr"))
    if found.status == 400 and name in (".txt", "a" * 5000 + ".txt"):
        return
    assert found.status == 200, found.body
    path = found.json["translatedFileUrl"].removeprefix(address)
    result = ask(address, path)
    assert result.status == 200
    assert "x-evil" not in result.headers
    disposition = result.headers["content-disposition"]
    assert "/" not in disposition.partition("utf-8''")[2]
    assert ".." not in disposition
    assert len(disposition) < 500


def test_a_name_with_a_line_break_does_not_reach_the_headers(address):
    body = upload("NAME", b"a cat.\n", source="en", target="fr")
    body["body"] = body["body"].replace(b'filename="NAME"', b"filename*=UTF-8''a%0d%0aX-Evil:%201.txt")
    found = ask(address, "/translate_file", **body)
    if found.status == 200:
        result = ask(address, found.json["translatedFileUrl"].removeprefix(address))
        assert result.status == 200
        assert "x-evil" not in result.headers
    else:
        assert found.status == 400


@pytest.mark.parametrize("path", ["/../etc/passwd", "/assets/%2e%2e/%2e%2e/keys.py", "/download_file/../x/y", "//evil",
                                  "/download_file/%2e%2e%2f/x", "/look/..", "/translate/", "/assets/a/..", "/%00"])
def test_paths_lead_nowhere(address, path):
    assert ask(address, path).status in (404, 405)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "TRACE", "PATCH", "X"])
def test_other_methods(address, method):
    assert ask(address, "/translate", b"{}", method=method).status == 405


def test_a_client_that_is_gone_takes_its_work_along(address, server):
    """A long request, and the connection closed: the engine becomes idle long before it would have finished."""
    engine = server.context.catalog.models[0].engine
    body = json.dumps({"text": ["the dog " * 10] * 16, "source": "en", "target": "fr", "keep_placeholders": False,
                       "beams": 32, "max_length": 2000, "min_length": 1999}).encode()
    parts = urllib.parse.urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(b"POST /api/v1/translate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert eventually(lambda: engine.load.running)
    assert eventually(lambda: engine.load.running + engine.load.queued == 0, 5)
    assert eventually(lambda: b'regard_http_requests_total{code="499",route="/api/v1/translate"}'
                      in ask(address, "/metrics").body)


def test_a_full_queue_a_time_limit_and_one_bad_input():
    """429 with Retry-After, 504, and a neighbour that is answered."""
    def make_engine(task):
        return ServingEngine(task, max_queued=4)

    long = {"text": "the dog " * 20, "source": "en", "target": "fr", "keep_placeholders": False, "beams": 16,
            "max_length": 3000, "min_length": 2999}
    with BackgroundServer(catalog(make_engine, completers=False), timeout=1.5, max_queue=4, max_batch=4) as server:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask(server.address, "/api/v1/translate", long)))
                   for _ in range(60)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        with socket.create_connection(urllib.parse.urlsplit(server.address).netloc.split(":")) as bad:
            bad.sendall(b"nonsense\r\n\r\n")
        for thread in threads:
            thread.join()
        codes = {one.status for one in answers}
        assert codes <= {429, 504}
        assert codes == {429, 504}
        for one in answers:
            if one.status == 429:
                assert int(one.headers["retry-after"]) >= 1
        wrong = ask(server.address, "/translate", {**FIELDS, "q": 1})
        right = ask(server.address, "/translate", FIELDS)
        assert (wrong.status, right.status) == (400, 200)
        large = ask(server.address, "/translate", **form(**{**FIELDS, "q": "x" * 20_000}))
        assert large.status == 400
