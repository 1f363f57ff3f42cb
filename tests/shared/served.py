"""A server in a thread with small untrained models, and requests to it: what tests of serving share."""

import http.client
import json
import socket
import time
import urllib.parse
from dataclasses import dataclass

import texting

from regard.data.languages import LanguagePair
from regard.serving.engine import ServingEngine
from regard.serving.models import ModelArgument, ModelCatalog, ServedModel, _inspector


def save_translator(folder, source="en", target="fr"):
    """A folder with an untrained translator."""
    task = texting.translator()
    task.source_lang, task.target_lang = source, target
    task.save(folder)
    task.source_lang = task.target_lang = None
    return str(folder)


def save_completer(folder):
    """A folder with an untrained language model."""
    texting.completer().save(folder)
    return str(folder)


def catalog(make_engine=ServingEngine, completers=True):
    """en-fr, fr-en, and a language model "writer"."""
    tasks = [("one", texting.translator(), LanguagePair("en", "fr")),
             ("two", texting.translator(), LanguagePair("fr", "en"))]
    tasks += [("writer", texting.completer(), None)] if completers else []
    models = [ServedModel(name, ModelArgument(name, pair), task, (pair,) if pair else (), None, _inspector(task))
              for name, task, pair in tasks]
    for model in models:
        model.engine = make_engine(_inspector(model.task))  # a model of its own: two engines share one otherwise
    return ModelCatalog(models)


@dataclass
class Answer:
    """A response with its body."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def ask(address, path, body=None, *, method=None, headers=None, timeout=120):
    """The response to a request; a dict or list is sent as JSON, bytes as they are."""
    parts = urllib.parse.urlsplit(address)
    headers = {name.lower(): value for name, value in (headers or {}).items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        found = connection.getresponse()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
    finally:
        connection.close()


def eventually(holds, seconds=60.0):
    """Whether something comes to hold: a request is counted and logged after its answer."""
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def form(**fields):
    """A form as body, and its header."""
    return {"body": urllib.parse.urlencode(fields).encode(),
            "headers": {"content-type": "application/x-www-form-urlencoded"}}


def upload(name, content, **fields):
    """A multipart body with a file, and its header."""
    mark = "xxBOUNDARYxx"
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
             for key, value in fields.items()]
    parts.append(f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
                 + content + b"\r\n")
    return {"body": b"".join(parts) + f"--{mark}--\r\n".encode(),
            "headers": {"content-type": f"multipart/form-data; boundary={mark}"}}


def raw(address, data, *, seconds=10.0, limit=1 << 20):
    """What a server sends for these bytes until it closes the connection, or nothing comes for some seconds."""
    parts, found = urllib.parse.urlsplit(address), b""
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            while len(found) < limit and (block := connection.recv(1 << 16)):
                found += block
        except (TimeoutError, ConnectionError):
            pass
    return found
