"""Limits of the server: nobody holds it up by sending slowly, by not listening, or by coming often."""

import contextlib
import http.client
import json
import socket
import time

import pytest
import traced

from regard.inspection.page import server
from regard.inspection.page.server import PageServer

WINDOW = "map.json?trace=0&attention=0&head=1&top=0&left=0&rows=6&columns=6&size=1"


@pytest.fixture(scope="module")
def serving():
    with PageServer([traced.translation()], what_if=lambda question: traced.one_token()) as running:
        yield running


def connected(serving):
    return socket.create_connection((server.HOST, serving.port), timeout=10)


def head(serving, path="", method="GET", **headers):
    """A request as it is sent, without what it might bring."""
    lines = {"Host": f"127.0.0.1:{serving.port}"} | headers
    return f"{method} /{serving.token}/{path} HTTP/1.1\r\n".encode() + b"".join(
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


@pytest.mark.parametrize("where", ["before the end of the headers", "inside of the body", "before a second request"])
def test_who_sends_a_byte_now_and_then_is_not_waited_for(serving, where, monkeypatch):
    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.4)
    post = head(serving, "translate.json", "POST", Content_Type="application/json", Content_Length=1000)
    start = {"before the end of the headers": post[:-2], "inside of the body": post,
             "before a second request": head(serving, WINDOW)}[where]
    began = time.monotonic()
    with connected(serving) as connection:
        connection.sendall(start)
        connection.settimeout(0.05)
        while not ended(connection) and time.monotonic() < began + 5:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
    assert time.monotonic() - began < 3


def answered(serving):
    """Whether somebody else is answered, at last."""
    for _ in range(100):
        with connected(serving) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(head(serving, "nothing"))
            if connection.recv(12) == b"HTTP/1.1 404":
                return True
        time.sleep(0.05)
    return False


def test_who_does_not_take_an_answer_is_not_waited_for(monkeypatch, capfd):
    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    with PageServer([traced.one_token()]) as running:
        running.html = b"x" * (64 << 20)
        with connected(running) as connection:
            connection.sendall(head(running))
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert answered(running)
    assert capfd.readouterr().err == ""


def test_so_many_connect_at_once_and_no_more(monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with PageServer([traced.one_token()]) as running, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(running)) for _ in range(3)]
        for connection in held:
            connection.sendall(head(running, "x")[:10])
        with connected(running) as more:
            assert ended(more)
        held[0].close()
        assert answered(running)


@pytest.mark.parametrize("names", [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")])
def test_a_page_under_the_other_name_of_this_host_is_another_page(serving, names):
    host, origin = (f"{name}:{serving.port}" for name in names)
    for allowed in (host, origin):
        connection = http.client.HTTPConnection(server.HOST, serving.port, timeout=10)
        connection.request("GET", f"/{serving.token}/{WINDOW}", headers={"Host": host, "Origin": f"http://{allowed}"})
        assert connection.getresponse().status == (200 if allowed == host else 403)
        connection.close()


def test_two_origins_are_refused(serving):
    with connected(serving) as connection:
        sent = head(serving, "map.json", Origin=f"http://127.0.0.1:{serving.port}", Connection="close")
        connection.sendall(sent[:-2] + b"Origin: http://example.org\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 403"


@pytest.mark.parametrize("sent", [b"<wicked> / HTTP/1.1\r\n\r\n", b"GET / <wicked>/1.1\r\n\r\n", b"<wicked>\r\n\r\n"])
def test_what_was_sent_is_not_sent_back(serving, sent):
    with connected(serving) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"wicked" not in said
    assert json.loads(said.partition(b"\r\n\r\n")[2] or said)["error"].startswith("This is no request")
