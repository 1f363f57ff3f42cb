"""The page's server: routes, requests that are refused, limits, and what-if requests."""

import base64
import contextlib
import http.client
import json
import re
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import trace_examples

from regard.inspection.page import document, server
from regard.inspection.page.server import (
    WINDOW_FIELDS,
    PageServer,
    RefusedRequestError,
    WhatIfRequest,
    parse_numbers,
    parse_what_if,
)
from regard.inspection.trace_format import TracedInfluence

LARGE = 300
SKELETON = ('<title>{{title}}</title><meta content="{{policy}}"><style>{{style}}</style>'
            '<script type="application/json" id="page">{{page}}</script><script>{{script}}</script>')


def asked(question):
    """What if, without a model: the title is the question."""
    if question.text == "bad":
        raise ValueError("`text` must be good, but is bad instead.")
    return trace_examples.translation(title=repr(question))


@pytest.fixture(scope="module", autouse=True)
def _plain_parts():
    """A page of no parts: what is served is tested here, and not what is shown."""
    empty = document.make_bundle(SKELETON, "", {"a.js": "const one = 1;" + " " * 1000})
    whole, server.document_bundle = server.document_bundle, lambda table: empty
    yield
    server.document_bundle = whole


@pytest.fixture(scope="module")
def traces():
    return [trace_examples.translation(), trace_examples.long(LARGE)]


@pytest.fixture(scope="module")
def serving(traces, _plain_parts):
    small, document.MAX_WEIGHTS = document.MAX_WEIGHTS, 10_000
    with PageServer(traces, what_if=asked) as running:
        yield running
    document.MAX_WEIGHTS = small


def call(serving, path="", method="GET", body=None, **headers):
    """Status, headers and body of the answer."""
    connection = http.client.HTTPConnection(server.HOST, serving.port, timeout=10)
    path = f"/{serving.token}/{path}" if not path.startswith("/") else path
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def window(**changes):
    given = {"trace": 1, "attention": 0, "head": 1, "top": 0, "left": 0, "rows": 64, "columns": 64, "size": 1} | changes
    return "map.json?" + "&".join(f"{name}={value}" for name, value in given.items())


def asks(serving, table, **headers):
    return call(serving, "translate.json", "POST", json.dumps(table), **{"Content-Type": "application/json"} | headers)


def test_the_page(serving):
    status, headers, body = call(serving)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    text = body.decode()
    [found] = re.findall(r'<script type="application/json" id="page">([^<]*)</script>', text)
    table = json.loads(found)
    assert table["served"] is True
    assert [one["data"]["kind"] for one in table["traces"][1]["attentions"]] == ["served"]
    assert serving.token not in text


@pytest.mark.parametrize("path", ["", window(), "nothing", "/"])
def test_every_answer_has_its_headers(serving, path):
    _, headers, _ = call(serving, path)
    policy = headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(("size", "shape"), [(1, (64, 64)), (8, (8, 8)), (50, (2, 2))])
def test_a_window(serving, traces, size, shape):
    top = 100
    status, headers, body = call(serving, window(top=top, left=50, size=size) if size != 8 else window(top=96, left=48,
                                                                                                      size=8))
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    answer = json.loads(body)
    values = np.frombuffer(base64.b64decode(answer["values"]), "<f4").reshape(shape)
    assert (answer["rows"], answer["columns"], answer["size"]) == (*shape, size)
    assert answer["largest"] == pytest.approx(float(values.max()))
    assert answer["smallest"] == pytest.approx(float(values.min()))
    if size == 1:
        want = traces[1].attentions[0].look.weights()[1, top:top + 64, 50:114]
        np.testing.assert_allclose(values, want, atol=1e-6)


def score(**changes):
    given = {"trace": 1, "attention": 0, "head": 1, "row": 40, "column": 7} | changes
    return "score.json?" + "&".join(f"{name}={value}" for name, value in given.items())


def test_the_score_of_a_weight_by_dimension(serving, traces):
    look = traces[1].attentions[0].look
    status, _, body = call(serving, score())
    answer = json.loads(body)
    query, key = look.query[1, 40].tolist(), look.key[1, 7].tolist()
    products = [one * other for one, other in zip(query, key, strict=True)]
    assert status == 200
    assert answer["products"] == pytest.approx(products, rel=1e-12)
    assert answer["product"] == pytest.approx(sum(products), rel=1e-9)
    assert answer["scale"] == pytest.approx(len(query) ** -0.5)
    assert answer["score"] == pytest.approx(sum(products) * len(query) ** -0.5, rel=1e-6)
    assert answer["weight"] == pytest.approx(float(look.weights()[1, 40, 7]), abs=1e-7)
    assert (answer["bias"], answer["masked"]) == (None, False)
    assert json.loads(call(serving, score(column=41))[2])["masked"] is True


@pytest.mark.parametrize("changes", [{"trace": 2}, {"attention": 1}, {"head": 2}, {"row": LARGE}, {"column": LARGE},
                                     {"row": -1}, {"more": 1}])
def test_the_score_of_no_weight_is_refused(serving, changes):
    status, _, body = call(serving, score(**changes))
    assert (status, "error" in json.loads(body)) == (400, True)
    assert call(serving, score(), "POST")[0] == 405


def test_scores_that_are_no_product_say_so():
    with PageServer([trace_examples.hostile()]) as running:
        for attention, part in ((0, "without the queries and keys"), (1, "Additive")):
            status, _, body = call(running, score(trace=0, attention=attention, head=0, row=1, column=1))
            assert status == 200
            assert part in json.loads(body)["reason"]


def test_a_window_without_numbers():
    with PageServer([trace_examples.hostile()]) as running:
        _, _, body = call(running, window(trace=0, head=0, rows=1, columns=1))
    answer = json.loads(body)
    assert (answer["largest"], answer["smallest"]) == (None, None)


@pytest.mark.parametrize("path", [
    "/", "/favicon.ico", "/wrong/", "/wrong/map.json", "//", "/../", "/etc/passwd", "index.html", "assets/main.js",
    "../", "..%2f", "./", "map.json/", "%6dap.json", "map.json%00", "MAP.JSON", ";", "\\", "x" * 5000])
def test_there_is_nothing_else(serving, path):
    status, headers, body = call(serving, path)
    assert status == 404
    assert json.loads(body) == {"error": "There is nothing at this address."}
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("token", ["", "x", "%TOKEN", "TOKEN%2f", "TOKENx", "TOKE"])
def test_the_token_is_whole(serving, token):
    status, _, _ = call(serving, f"/{token.replace('TOKEN', serving.token).replace('TOKE', serving.token[:-1])}")
    assert status == 404


@pytest.mark.parametrize("host", ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}",
                                  "", "127.0.0.1:{port}.example.org", "[::1]:{port}"])
@pytest.mark.parametrize("path", ["", "map.json", "/"])
def test_another_host_is_refused(serving, host, path):
    status, _, body = call(serving, path, Host=host.format(port=serving.port))
    assert status == 403
    assert "own name" in json.loads(body)["error"]


def test_localhost_is_this_host(serving):
    assert call(serving, Host=f"localhost:{serving.port}", Origin=f"http://localhost:{serving.port}")[0] == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "https://example.org"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1"},
    {"Origin": "https://127.0.0.1:{port}"}, {"Origin": "http://127.0.0.1:{port}.example.org"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}])
def test_other_pages_are_refused(serving, headers):
    headers = {name: value.format(port=serving.port) for name, value in headers.items()}
    for answer in (call(serving, window(), **headers), asks(serving, {"text": "a"}, **headers)):
        assert answer[0] == 403


@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1:{port}"}, {"Sec-Fetch-Site": "same-origin"},
                                     {"Sec-Fetch-Site": "none"}])
def test_its_own_page_is_answered(serving, headers):
    headers = {name: value.format(port=serving.port) for name, value in headers.items()}
    assert call(serving, window(), **headers)[0] == 200


def test_a_link_may_be_followed_from_anywhere(serving):
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert call(serving, **followed)[0] == 200
    assert asks(serving, {"text": "a"}, **followed)[0] == 403


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "", 405), ("POST", "map.json", 405), ("GET", "translate.json", 405),
    ("GET", "influence.json", 405), ("PUT", "", 501),
    ("DELETE", "map.json", 501), ("OPTIONS", "translate.json", 501), ("TRACE", "", 501)])
def test_other_methods_are_refused(serving, method, path, status):
    got, headers, body = call(serving, path, method)
    assert got == status
    assert headers["Content-Type"] == "application/json"
    assert "error" in json.loads(body)


def test_head_has_no_body(serving):
    status, headers, body = call(serving, "", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(("change", "said"), [
    ({"trace": 2}, "`trace`"), ({"attention": 1}, "`attention`"), ({"head": 2}, "`head`"), ({"top": 300}, "`top`"),
    ({"size": 0}, "`size`"), ({"top": "x"}, "whole numbers"), ({"rows": ""}, "whole numbers")])
def test_a_wrong_window_is_a_message(serving, change, said):
    status, _, body = call(serving, window(**change))
    assert status == 400
    assert said in json.loads(body)["error"]


def test_what_if(serving):
    status, _, body = asks(serving, {"text": "<b>", "prefix": "Le", "beams": 2, "choice": 1, "trace": 1})
    assert status == 200
    assert b"<" not in body
    trace = json.loads(body)["trace"]
    assert trace["title"] == "WhatIfRequest(text='<b>', prefix='Le', beams=2, choice=1, trace=1)"
    assert {one["data"]["kind"] for one in trace["attentions"]} == {"weights"}


def test_what_a_model_refuses_is_a_message(serving):
    status, _, body = asks(serving, {"text": "bad"})
    assert (status, json.loads(body)) == (400, {"error": "`text` must be good, but is bad instead."})


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("not enough memory: you tried to allocate 9 bytes"),
                                   torch.OutOfMemoryError("CUDA out of memory")])
def test_too_little_memory_is_a_message(error, capfd):
    def large(question):
        raise error

    with PageServer([trace_examples.one_token()], what_if=large) as running:
        status, _, body = asks(running, {"text": "a"})
        assert call(running)[0] == 200
    assert status == 500
    assert "fewer beams" in json.loads(body)["error"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("headers", "body", "status"), [
    ({"Content-Type": "text/plain"}, b'{"text": "a"}', 415), ({}, b'{"text": "a"}', 415),
    ({"Content-Type": "application/json"}, b"{", 400),
    ({"Content-Type": "application/json", "Content-Length": "99999999999"}, b"", 413),
    ({"Content-Type": "application/json", "Content-Length": str((1 << 20) + 1)}, b"", 413),
    ({"Content-Type": "application/json", "Content-Length": "-1"}, b"", 411),
    ({"Content-Type": "application/json", "Content-Length": "9" * 50}, b"", 413),
    ({"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, b"0\r\n\r\n", 411)])
def test_what_if_requests_of_another_form_are_refused(serving, headers, body, status):
    got, answered, said = call(serving, "translate.json", "POST", body, **headers)
    assert got == status
    assert json.loads(said)["error"]
    assert answered["Connection"] == "close"


def test_traces_without_a_model_refuse_what_if():
    with PageServer([trace_examples.one_token()]) as running:
        status, _, body = asks(running, {"text": "a"})
    assert status == 404
    assert "without a model" in json.loads(body)["error"]


def left_out(words):
    """Influence without a model: the number of each word, for two target tokens."""
    if words is not None and max(words) > 4:
        raise ValueError("`words` must be numbers of the 5 words.")
    numbers = range(3) if words is None else words
    rows = tuple(tuple(float(number) for number in numbers) for _ in range(6))
    return TracedInfluence("target", "source", tuple((number,) for number in numbers), rows)


def influence(serving, table):
    status, _, body = call(serving, "influence.json", "POST", json.dumps(table), **{"Content-Type": "application/json"})
    return status, json.loads(body)


def test_words_of_a_trace_are_left_out_on_request():
    trace = replace(trace_examples.translation(), leave_out=left_out)
    with PageServer([trace, trace_examples.one_token()], what_if=lambda question: trace) as running:
        _, _, body = call(running)
        [found] = re.findall(r'<script type="application/json" id="page">([^<]*)</script>', body.decode())
        first, second = json.loads(found)["traces"]
        assert (first["number"], first["refines"], "refines" in second) == (0, True, False)
        status, answer = influence(running, {"trace": 0, "words": [3, 1, 3]})
        assert status == 200
        assert answer["influence"]["tokens"] == [[3], [1]]
        assert answer["influence"]["values"][0] == [3.0, 1.0]
        assert influence(running, {})[1]["influence"]["tokens"] == [[0], [1], [2]]
        status, answer = influence(running, {"trace": 0, "words": [9]})
        assert (status, "5 words" in answer["error"]) == (400, True)
        for number in (1, 2):  # without a model, and not there
            status, answer = influence(running, {"trace": number, "words": [0]})
            assert (status, "regard look" in answer["error"]) == (404, True)
        asked = json.loads(asks(running, {"text": "a"})[2])["trace"]
        assert (asked["number"], asked["refines"]) == (2, True)
        assert influence(running, {"trace": 2, "words": [0]})[0] == 200


def test_only_the_latest_answers_are_kept(monkeypatch):
    monkeypatch.setattr(server, "MAX_KEPT", 2)
    trace = replace(trace_examples.one_token(), leave_out=left_out)
    with PageServer([trace], what_if=lambda question: trace) as running:
        for _ in range(4):
            asks(running, {"text": "a"})
        assert [influence(running, {"trace": number, "words": [0]})[0] for number in range(6)] == [200, 404, 404, 200,
                                                                                                  200, 404]
    assert running.leave_out == {}


@pytest.mark.parametrize("table", [{"words": []}, {"words": 3}, {"words": [1.5]}, {"words": [True]}, {"words": ["a"]},
                                   {"trace": -1}, {"trace": "0"}, {"more": 1}, [], {"trace": True}])
def test_other_requests_for_influence_are_refused(serving, table):
    status, answer = influence(serving, table)
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize("sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff\xfe\x00\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"G" * 70_000 + b"\r\n"])
def test_malformed_requests_do_no_harm(serving, sent):
    with socket.create_connection((server.HOST, serving.port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass  # it closed what it would not read
    assert call(serving)[0] == 200


def test_disconnected_clients_do_no_harm(serving, capfd):
    with socket.create_connection((server.HOST, serving.port)) as connection:
        connection.sendall(f"GET /{serving.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert call(serving)[0] == 200
    assert capfd.readouterr().err == ""


def test_concurrent_requests(serving):
    found = []

    def ask(top):
        found.append(call(serving, window(top=top))[0])

    threads = [threading.Thread(target=ask, args=(top,)) for top in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 8


def test_it_listens_to_this_machine_alone(serving):
    assert serving.http.server_address[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", serving.address)


def test_every_server_has_a_token_of_its_own():
    with PageServer([trace_examples.one_token()]) as one, PageServer([trace_examples.one_token()]) as two:
        assert one.token != two.token


def test_a_port_that_is_taken_is_an_error(serving):
    with pytest.raises(OSError, match="in use"):
        PageServer([trace_examples.one_token()], port=serving.port)
    with pytest.raises(ValueError, match="`port`"):
        PageServer([trace_examples.one_token()], port=70_000)


def test_an_interrupt_ends_it(monkeypatch):
    running = PageServer([trace_examples.one_token()])

    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running.http, "serve_forever", interrupted)
    running.run()
    assert running.http.socket.fileno() == -1


def test_shutdown_waits_for_computations(traces):
    began, go_on, ended = threading.Event(), threading.Event(), []

    def slow(question):
        began.set()
        go_on.wait(10)
        ended.append(True)
        return trace_examples.one_token()

    with PageServer(traces, what_if=slow) as running:
        asking = threading.Thread(target=asks, args=(running, {"text": "a"}))
        asking.start()
        began.wait(10)
        threading.Timer(0.2, go_on.set).start()
    assert ended == [True]
    asking.join()
    with pytest.raises(ValueError, match="shutting down"):
        running.map(window().removeprefix("map.json?"))


def test_weights_on_the_page_are_those_of_the_trace(serving, traces):
    table = document.served_document(traces)
    data = table["traces"][0]["attentions"][5]["data"]
    upper = torch.frombuffer(bytearray(base64.b64decode(data["values"])), dtype=torch.uint8).view(-1, 3)
    got = torch.nn.functional.pad(upper, (1, 0)).contiguous().view(torch.float32)  # without the lowest byte
    torch.testing.assert_close(got.view(4, 6, 7), traces[0].attentions[5].look.weights(), rtol=2 ** -16, atol=0)


WINDOW = "map.json?trace=0&attention=0&head=1&top=0&left=0&rows=6&columns=6&size=1"


@pytest.fixture(scope="module")
def serving_limit():
    with PageServer([trace_examples.translation()], what_if=lambda question: trace_examples.one_token()) as running:
        yield running


def connected(serving_limit):
    return socket.create_connection((server.HOST, serving_limit.port), timeout=10)


def head(serving_limit, path="", method="GET", **headers):
    """A request as it is sent, without what it might bring."""
    lines = {"Host": f"127.0.0.1:{serving_limit.port}"} | headers
    return f"{method} /{serving_limit.token}/{path} HTTP/1.1\r\n".encode() + b"".join(
        f"{name.replace('_', '-')}: {value}\r\n".encode() for name, value in lines.items()) + b"\r\n"


def ended(connection):
    """Whether the other side closes it; what it says before does not matter."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["before the end of the headers", "inside of the body", "before a second request"])
def test_slow_requests_time_out(serving_limit, where, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.4)
    post = head(serving_limit, "translate.json", "POST", Content_Type="application/json", Content_Length=1000)
    start = {"before the end of the headers": post[:-2], "inside of the body": post,
             "before a second request": head(serving_limit, WINDOW)}[where]
    began = time.monotonic()
    with connected(serving_limit) as connection:
        connection.sendall(start)
        connection.settimeout(0.05)
        while not ended(connection) and time.monotonic() < began + 5:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
    assert time.monotonic() - began < 3


def answered(serving_limit):
    """Whether somebody else is answered, at last."""
    for _ in range(100):
        with connected(serving_limit) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(head(serving_limit, "nothing"))
            if connection.recv(12) == b"HTTP/1.1 404":
                return True
        time.sleep(0.05)
    return False


def test_unread_answers_time_out(monkeypatch, capfd):
    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    with PageServer([trace_examples.one_token()]) as running:
        running.html = b"x" * (64 << 20)
        with connected(running) as connection:
            connection.sendall(head(running))
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert answered(running)
    assert capfd.readouterr().err == ""


def test_number_of_connections_is_limited(monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with PageServer([trace_examples.one_token()]) as running, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(running)) for _ in range(3)]
        for connection in held:
            connection.sendall(head(running, "x")[:10])
        with connected(running) as more:
            assert ended(more)
        held[0].close()
        assert answered(running)


@pytest.mark.parametrize("names", [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")])
def test_a_page_under_the_other_name_of_this_host_is_another_page(serving_limit, names):
    host, origin = (f"{name}:{serving_limit.port}" for name in names)
    for allowed in (host, origin):
        connection = http.client.HTTPConnection(server.HOST, serving_limit.port, timeout=10)
        connection.request("GET", f"/{serving_limit.token}/{WINDOW}",
                           headers={"Host": host, "Origin": f"http://{allowed}"})
        assert connection.getresponse().status == (200 if allowed == host else 403)
        connection.close()


def test_two_origins_are_refused(serving_limit):
    with connected(serving_limit) as connection:
        sent = head(serving_limit, "map.json", Origin=f"http://127.0.0.1:{serving_limit.port}", Connection="close")
        connection.sendall(sent[:-2] + b"Origin: http://example.org\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 403"


@pytest.mark.parametrize("sent", [b"<wicked> / HTTP/1.1\r\n\r\n", b"GET / <wicked>/1.1\r\n\r\n", b"<wicked>\r\n\r\n"])
def test_errors_do_not_echo_the_request(serving_limit, sent):
    with connected(serving_limit) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"wicked" not in said
    assert json.loads(said.partition(b"\r\n\r\n")[2] or said)["error"].startswith("Bad request")


ASKED = "&".join(f"{name}={place}" for place, name in enumerate(WINDOW_FIELDS))


def test_a_window_request():
    assert parse_numbers(ASKED) == {name: place for place, name in enumerate(WINDOW_FIELDS)}


@pytest.mark.parametrize("query", ["", "trace=0", ASKED + "&size=2", ASKED + "&more=1", ASKED.replace("=3", "=-3"),
                                   ASKED.replace("=3", "=3.0"), ASKED.replace("=3", "="), ASKED.replace("=3", "=٣"),
                                   ASKED.replace("=3", "=" + "9" * 10), ASKED.replace("=3", "=%00"), "&" * 99,
                                   ASKED.replace("size", "trace")])
def test_invalid_window_requests_are_refused(query):
    with pytest.raises(RefusedRequestError, match="whole numbers") as error:
        parse_numbers(query)
    assert error.value.status == 400


def test_what_if_request():
    assert parse_what_if(b'{"text": "Two dogs."}') == WhatIfRequest("Two dogs.", "", None, 0, 0)
    asked = {"text": "é<", "prefix": "Deux", "beams": 3, "choice": 2, "trace": 1}
    assert parse_what_if(json.dumps(asked).encode()) == WhatIfRequest(**asked)
    assert parse_what_if(b'{"text": "a", "prefix": null, "beams": null}') == WhatIfRequest("a")


@pytest.mark.parametrize(("body", "said"), [
    (b"", "JSON object"), (b"[]", "JSON object"), (b"{}", "with a text"), (b'{"text": null}', "with a text"),
    (b'{"text": 3}', "`text` must be text"), (b'{"text": "a", "more": 1}', "text, prefix, beams, choice, trace"),
    (b'{"text": "a", "beams": true}', "`beams` must be a whole number"), (b'{"text": "a", "beams": 2.0}', "`beams`"),
    (b'{"text": "a", "beams": 0}', "from 1 to 64"), (b'{"text": "a", "beams": 65}', "from 1 to 64"),
    (b'{"text": "a", "choice": -1}', "`choice`"), (b'{"text": "a", "trace": 2}', "`trace`"),
    (b'{"text": "\\ud800"}', "surrogate"), (b'{"text": "\xff"}', "UTF-8"), (b'{"text": "a", "beams": NaN}', "JSON"),
    (b'{"text": "' + b"a" * 20_001 + b'"}', "20,000 characters"), (b"[" * 100_000, "JSON object"),
    (b'{"text": ["a"]}', "`text`"),
])
def test_invalid_what_if_requests_are_refused(body, said):
    with pytest.raises(ValueError, match=r"must be|JSON") as error:
        parse_what_if(body)
    assert said in str(error.value)
