"""Requests made from the OpenAPI description, right and wrong ones: no answer is a server error."""

import contextlib
import os
import time

import pytest
from hypothesis import HealthCheck, Phase, errors, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis, of the extra `peers`, is not installed")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

LONG = bool(os.environ.get("REGARD_LONG"))
EXAMPLES, SECONDS = (300, 100.0) if LONG else (10, 2.0)
"""For each operation and mode."""


@pytest.mark.timeout(3600 if LONG else 150)
def test_no_request_is_a_server_error(address):
    schema, tested = schemathesis.openapi.from_url(f"{address}/openapi.json"), {}
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:
            codes = fuzz(operation.as_strategy(generation_mode=mode))
            tested.setdefault(operation.label, []).extend(codes)
    everything = [code for codes in tested.values() for code in codes]
    assert len(tested) >= 12
    assert len(everything) > 60
    assert {200, 400, 404} <= {*everything}


def fuzz(strategy):
    """The statuses of requests of a strategy; none where it has no example."""
    codes, end = [], time.monotonic() + SECONDS

    def run(case):
        if time.monotonic() > end:
            return
        answer = case.call(timeout=60)
        assert answer.status_code < 500 or answer.status_code == 504, f"{case.as_curl_command()}\n{answer.text[:300]}"
        if answer.status_code != 200 and case.method != "HEAD":
            assert "error" in answer.json()
        codes.append(answer.status_code)

    chosen = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                      suppress_health_check=[*HealthCheck])
    with contextlib.suppress(errors.Unsatisfiable):
        chosen(given(strategy)(run))()
    return codes
