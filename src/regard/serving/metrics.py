"""Prometheus metrics and the log of a server: numbers and names, never a text, an address or a key.

    regard_http_requests_total{route, code}        regard_http_request_seconds{route}
    regard_http_requests_in_flight                 regard_http_refused_connections_total
    regard_queue_seconds{model}                    regard_first_token_seconds{model}
    regard_queued_texts, regard_running_texts, regard_batch_rows{model}
    regard_generated_tokens_total, regard_engine_requests_total, regard_engine_steps_total, regard_engine_rows_total,
    regard_engine_busy_seconds_total{model}
    regard_model_info{model, source, target, parameters, device, version}

A route is the path as the server knows it ("/translate"); any other path is "other". The mean number of rows in a batch
is the rate of `regard_engine_rows_total` divided by that of `regard_engine_steps_total`.
"""

import json
import logging
import time
import traceback
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regard._version import __version__
from regard.serving.models import ModelCatalog
from regard.serving.requests import RequestFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LOGGER = logging.getLogger("regard.serving")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("regard_http_requests", "Requests by route and status code.", ["route", "code"],
                                registry=self.registry)
        self.in_flight = Gauge("regard_http_requests_in_flight", "Requests that are being answered.",
                               registry=self.registry)
        self.refused = Counter("regard_http_refused_connections", "Connections closed because there were too many.",
                               registry=self.registry)
        self.seconds = Histogram("regard_http_request_seconds", "Seconds from the request to the end of its answer.",
                                 ["route"], buckets=SECONDS, registry=self.registry)
        self.queue_seconds = Histogram("regard_queue_seconds", "Seconds that requests waited for the model.", ["model"],
                                       buckets=SECONDS, registry=self.registry)
        self.first_token = Histogram("regard_first_token_seconds", "Seconds from a request to its first token.",
                                     ["model"], buckets=SECONDS, registry=self.registry)
        self.registry.register(_EngineCollector(catalog))

    def finish(self, facts: RequestFacts, status: int) -> None:
        """Count a finished request."""
        self.requests.labels(facts.route, str(status)).inc()
        self.seconds.labels(facts.route).observe(time.monotonic() - facts.started)
        if facts.model is not None and facts.queued_seconds is not None:
            self.queue_seconds.labels(facts.model).observe(facts.queued_seconds)
        if facts.model is not None and facts.first_token_seconds is not None:
            self.first_token.labels(facts.model).observe(facts.first_token_seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """The metrics that the engines know, read when they are asked for."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self.catalog = catalog

    def collect(self) -> Iterator[Metric]:
        """The metrics of all engines."""
        loads = [(model, model.engine.load) for model in self.catalog.models]
        for name, text, key in (("regard_queued_texts", "Texts that wait.", "queued"),
                                ("regard_running_texts", "Texts that are being generated.", "running"),
                                ("regard_batch_rows", "Rows of the running batch.", "rows")):
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model, load in loads:
                gauge.add_metric([model.name], getattr(load, key))
            yield gauge
        for name, text, key in (("regard_generated_tokens", "Generated tokens.", "tokens"),
                                ("regard_engine_requests", "Requests that the engine has finished.", "requests"),
                                ("regard_engine_steps", "Steps of the model.", "steps"),
                                ("regard_engine_rows", "Rows of all steps of the model.", "step_rows"),
                                ("regard_engine_busy_seconds", "Seconds in which the model ran.", "seconds_busy")):
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model, load in loads:
                counter.add_metric([model.name], getattr(load, key))
            yield counter
        info = GaugeMetricFamily("regard_model_info", "The models that are served; the value is 1.",
                                 labels=["model", "source", "target", "parameters", "device", "version"])
        for model, _ in loads:
            more = (str(model.parameters), self.catalog.device, __version__)
            for pair in model.pairs or (("", ""),):
                info.add_metric([model.name, *pair, *more], 1)
        yield info


# The log

def log_request(facts: RequestFacts, method: str, status: int) -> None:
    """Log a finished request: its route and numbers."""
    fields = {"method": method, "route": facts.route, "status": status, "key": facts.key, "model": facts.model,
              "seconds": round(time.monotonic() - facts.started, 4), "texts": facts.texts or None,
              "characters": facts.characters or None, "tokens": facts.tokens or None,
              "queued_seconds": None if facts.queued_seconds is None else round(facts.queued_seconds, 4)}
    LOGGER.info("request", extra={name: value for name, value in fields.items() if value is not None})


class LogFormatter(logging.Formatter):
    """Lines for people, or JSON objects.

    Of an exception they have only the type and where it was raised, since its message may hold a text.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        """One line, or for people several with a traceback."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        more = {name: value for name, value in vars(record).items()
                if name not in _STANDARD_FIELDS and name not in ("color_message", "taskName", "message", "asctime")}
        if record.exc_info and record.exc_info[0] is not None:
            more["exception"] = record.exc_info[0].__name__
            more["traceback"] = [f"{one.filename}:{one.lineno} {one.name}"
                                 for one in traceback.extract_tb(record.exc_info[2])]
        if self.kind == "json":
            return json.dumps({"time": moment, "level": record.levelname.lower(),
                               "message": record.getMessage().strip(), **more}, default=str)
        places = "".join(f"\n  {place}" for place in more.pop("traceback", ()))
        facts = " ".join(f"{name}={value}" for name, value in more.items())
        return f"{moment} {record.levelname.lower()} {record.getMessage().strip()} {facts}".rstrip() + places


def set_up_logging(kind: str) -> None:
    """Log to stderr in this format: the server's own messages, and those of uvicorn and asyncio."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(kind))
    for name, level in (("regard.serving", logging.INFO), ("uvicorn", logging.WARNING), ("asyncio", logging.ERROR)):
        logger: Any = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(level)
