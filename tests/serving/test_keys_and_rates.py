"""API keys, rate limits, CORS, the Host, metrics and logs: who may do what, and what is told about it."""

import hashlib
import json
import logging

import pytest
from served import ask, catalog, eventually, form

from regard.serving.keys import ApiKeys, RateLimiter, make_key
from regard.serving.metrics import LogFormatter
from regard.serving.server import BackgroundServer
from regard.serving.settings import ServerSettings

FIELDS = {"q": "a cat.", "source": "en", "target": "fr"}
SECRET = "zebra-secret"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server with keys: alice may send many requests, bob two a minute."""
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    alice, line = make_key("alice")
    bob, other = make_key("bob")
    path.write_text(f"# keys\n\n{line}\n{other} 2\n")
    with BackgroundServer(catalog(), key_file=str(path), cors_origins=("https://example.org",),
                          allowed_hosts=("translate.example.org",)) as server:
        yield server, alice, bob


def test_a_key_comes_as_a_field_or_as_a_bearer_token(keyed):
    server, alice, _ = keyed
    address = server.address
    assert ask(address, "/translate", {**FIELDS, "api_key": alice}).status == 200
    assert ask(address, "/translate", **form(**FIELDS, api_key=alice)).status == 200
    assert ask(address, "/translate", FIELDS, headers={"Authorization": f"Bearer {alice}"}).status == 200
    assert ask(address, "/v1/models", headers={"Authorization": f"Bearer {alice}"}).status == 200
    for path, body, status in (("/translate", FIELDS, 403), ("/translate", {**FIELDS, "api_key": alice[:-1]}, 403),
                               ("/translate", {**FIELDS, "api_key": "\ud800"}, 403), ("/detect", {"q": "a"}, 403),
                               ("/v1/completions", {}, 401), ("/api/v1/translate", {}, 401), ("/v1/models", None, 401),
                               ("/api/v1/look", {}, 401), ("/translate_file", {}, 403), ("/api/v1/models", None, 401)):
        found = ask(address, path, body)
        assert found.status == status, path
        assert "key" in json.dumps(found.json)
    for path in ("/", "/health", "/languages", "/frontend/settings", "/metrics", "/openapi.json"):
        assert ask(address, path).status == 200
    assert ask(address, "/frontend/settings").json["keyRequired"] is True


def test_a_rate_is_of_one_key(keyed):
    server, alice, bob = keyed
    codes = [ask(server.address, "/detect", {"q": "a", "api_key": bob}) for _ in range(3)]
    assert [one.status for one in codes] == [200, 200, 429]
    assert 20 <= int(codes[2].headers["retry-after"]) <= 30
    assert ask(server.address, "/detect", {"q": "a", "api_key": alice}).status == 200


def test_other_pages_may_ask_only_where_it_is_allowed(keyed, address):
    server, alice, _ = keyed
    wanted = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST",
              "Access-Control-Request-Headers": "content-type"}
    assert ask(server.address, "/translate", method="OPTIONS", headers=wanted).headers[
        "access-control-allow-origin"] == "https://example.org"
    for origin in ("https://example.org", "https://evil.example"):
        found = ask(server.address, "/detect", {"q": "a", "api_key": alice}, headers={"Origin": origin})
        allowed = found.headers.get("access-control-allow-origin")
        assert allowed == (origin if origin == "https://example.org" else None)
    assert "access-control-allow-origin" not in ask(address, "/languages", headers={"Origin": "https://a.b"}).headers
    assert ask(address, "/translate", method="OPTIONS", headers=wanted).status == 405


@pytest.mark.parametrize(("host", "allowed"), [
    ("localhost", True), ("localhost:99", True), ("127.0.0.1", True), ("[::1]:5000", True), ("10.1.2.3:80", True),
    ("translate.example.org", True), ("TRANSLATE.example.org:443", True), ("translate.example.org.", True),
    ("evil.example", False), ("localhost.evil.example", False), ("", False), ("127.0.0.1.evil.example", False),
    ("localhost@evil.example", False),
])
def test_the_host_must_be_this_server(keyed, host, allowed):
    assert ask(keyed[0].address, "/health", headers={"Host": host}).status == (200 if allowed else 421)


def test_metrics_and_logs_have_numbers_and_no_texts(keyed):
    server, alice, _ = keyed
    logger = logging.getLogger("regard.serving")
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        fields = {**FIELDS, "q": SECRET, "api_key": alice}
        assert ask(server.address, "/translate", fields, headers={"X-Forwarded-For": "9.8.7.6"}).status == 200
        assert ask(server.address, f"/translate?q={SECRET}&source=en&target=xx&api_key={alice}", b"",
                   method="POST").status == 400
        assert ask(server.address, f"/{SECRET}?{SECRET}").status == 404
        assert ask(server.address, f"/v1/models/{SECRET}", headers={"Authorization": f"Bearer {alice}"}).status == 404
        assert eventually(lambda: len(records) == 4)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    lines = [LogFormatter(kind).format(record) for record in records for kind in ("json", "text")]
    text = ask(server.address, "/metrics").body.decode()
    for shown in (*lines, text):
        for hidden in (SECRET, alice, alice[3:], "9.8.7.6", "127.0.0.1"):
            assert hidden not in shown
    tables = [json.loads(line) for line in lines[::2]]
    assert [(one["route"], one["status"]) for one in tables] == [
        ("/translate", 200), ("/translate", 400), ("other", 404), ("/v1/models/{model}", 404)]
    assert (tables[0]["characters"], tables[0]["key"], tables[0]["model"]) == (len(SECRET), "alice", "one")
    for name in ('regard_http_requests_total{code="404",route="other"} 1.0', "regard_queued_texts{",
                 'regard_queue_seconds_count{model="one"}', 'regard_first_token_seconds_count{model="one"}',
                 "regard_generated_tokens_total", "regard_engine_rows_total", "regard_batch_rows",
                 "regard_http_requests_in_flight 1.0",
                 'regard_model_info{device="cpu",model="one"', "regard_http_request_seconds_bucket"):
        assert name in text
    assert "alice" not in text


def test_an_exception_in_the_log_has_no_message():
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "Exception in ASGI application\n", None,
                                   (RuntimeError, error, error.__traceback__))
    for kind in ("json", "text"):
        line = LogFormatter(kind).format(record)
        assert SECRET not in line
        assert "RuntimeError" in line
        assert "test_keys_and_rates.py" in line
    assert json.loads(LogFormatter("json").format(record))["level"] == "error"


# The key file

def test_a_key_file_has_hashes_only(tmp_path):
    key, line = make_key("alice")
    assert key not in line
    assert hashlib.sha256(key.encode()).hexdigest() in line
    assert make_key("alice")[0] != key
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\n{line} 30\nbob {'AB' * 32}\n")
    keys = ApiKeys.read(str(path))
    assert [(one.name, one.rate_limit) for one in keys.keys] == [("alice", 30), ("bob", None)]
    assert keys.find(key).name == "alice"
    assert [keys.find(other) for other in (None, "", key + " ", key.upper(), "alice")] == [None] * 5


@pytest.mark.parametrize(("content", "said"), [
    ("alice", ":1"), ("# a\nalice sha256:12", ":2"), (f"a sha256:{'0' * 64} x", ":1"), (f"a {'0' * 64} 0", ":1"),
    (f"a {'0' * 64}\na {'1' * 64}", ":2"), ("", "--make-key"), (f"../a {'0' * 64}", ":1"), (b"\xff", "byte 0"),
    (f"a {'0' * 64} 5 6", ":1"),
])
def test_a_bad_key_file_is_named_with_its_line(tmp_path, content, said):
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=said.replace(".", r"\.")) as error:
        ApiKeys.read(str(path))
    assert str(path) in str(error.value)
    with pytest.raises(ValueError, match="nothing-there"):
        ApiKeys.read(str(tmp_path / "nothing-there"))


def test_buckets_fill_with_time():
    now = 0.0
    limiter = RateLimiter(lambda: now)
    assert [limiter.wait("a", 2) for _ in range(3)] == [0, 0, 30]
    assert limiter.wait("b", 2) == 0
    now = 15.0
    assert limiter.wait("a", 2) == 15
    now = 30.0
    assert limiter.wait("a", 2) == 0
    assert limiter.wait("a", 2) == 30
    for number in range(20_000):
        limiter.wait(str(number), 2)
    assert len(limiter._buckets) <= 10_000


@pytest.mark.parametrize(("fields", "said"), [
    ({"log": "xml"}, "log"), ({"port": 70000}, "port"), ({"timeout": 0}, "timeout"), ({"max_batch": 600}, "max_batch"),
    ({"cors_origins": ("example.org",)}, "cors_origin"), ({"cors_origins": ("https://a.b/",)}, "cors_origin"),
    ({"allowed_hosts": ("http://a.b",)}, "allowed_host"), ({"rate_limit": 0}, "rate_limit"),
])
def test_wrong_settings_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        ServerSettings(**fields)
