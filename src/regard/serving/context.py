"""What the routes of a server share: settings, models, keys, metrics, downloads and threads."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from starlette.requests import Request

from regard import allocation
from regard.serving.files import DownloadStore
from regard.serving.jobs import JobContext
from regard.serving.keys import ApiKeys, RateLimiter, bearer_token
from regard.serving.metrics import LOGGER, ServerMetrics
from regard.serving.models import ModelCatalog
from regard.serving.requests import HttpError, facts_of
from regard.serving.settings import ServerSettings

INSPECTION_THREADS, FILE_THREADS = 2, 2
MAX_UPLOADS = 8
"""Files that are uploaded or translated at a time."""
STORE_FILES = 10
"""The store of downloads holds as many files of the largest size."""
SWEEP_SECONDS = 30.0


class ServerContext:
    """The parts of a running server."""

    def __init__(self, settings: ServerSettings, catalog: ModelCatalog) -> None:
        self.settings, self.catalog = settings, catalog
        self.keys = None if settings.key_file is None else ApiKeys.read(settings.key_file)
        self.limiter, self.metrics = RateLimiter(), ServerMetrics(catalog)
        self.downloads = DownloadStore(STORE_FILES * settings.max_file_size)
        alone: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}  # see regard.serving.models
        self.inspection_pool = ThreadPoolExecutor(INSPECTION_THREADS, "regard-inspect", **alone)
        self.file_pool = ThreadPoolExecutor(FILE_THREADS, "regard-files", **alone)
        self.uploads = 0
        self._reloading = False

    def authorize(self, request: Request, api_key: object = None) -> None:
        """Check the key of a request, in a field or in the header Authorization, and count it for the rate limit."""
        facts, key = facts_of(request), None
        if self.keys is not None:
            given = api_key if isinstance(api_key, str) and api_key else bearer_token(request.headers)
            key = self.keys.find(given)
            if key is None:
                problem = "Invalid API key" if given else "An API key is needed"
                status = 401 if request.url.path.startswith(("/v1/", "/api/")) else 403
                raise HttpError(status, f"{problem}. Ask the operator of this server for one.", code="invalid_api_key")
            facts.key = key.name
        limit = self.settings.rate_limit if key is None or key.rate_limit is None else key.rate_limit
        if limit is not None:
            client = f"key {key.name}" if key else f"address {request.client.host if request.client else ''}"
            seconds = self.limiter.wait(client, limit)
            if seconds:
                raise HttpError(429, f"Slowdown: at most {limit:,} requests a minute are allowed.", retry_after=seconds,
                                code="rate_limit_exceeded")

    def job(self, request: Request, factor: float = 1.0) -> JobContext:
        """A request that is to be worked on, within the time limit of the server."""
        return JobContext(facts_of(request), time.monotonic() + factor * self.settings.timeout, self.inspection_pool)

    async def reload(self) -> None:
        """Load the models and the keys again; what cannot be loaded stays as it was, and is logged."""
        if self._reloading:
            return
        self._reloading = True
        try:
            problems = await asyncio.get_running_loop().run_in_executor(None, self.catalog.reload)
            if self.settings.key_file is not None:
                try:
                    self.keys = ApiKeys.read(self.settings.key_file)
                except ValueError as error:
                    problems.append(str(error))
            for problem in problems:
                LOGGER.error("reload failed", extra={"problem": problem})
            LOGGER.info("reloaded", extra={"models": len(self.catalog.models), "failed": len(problems)})
        finally:
            self._reloading = False

    async def sweep(self) -> None:
        """Remove expired downloads now and then, and after work return free memory, until cancelled."""
        returned = 0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.downloads.sweep()
            loads = [model.engine.load for model in self.catalog.models]
            answered = sum(load.requests for load in loads)
            if answered != returned and not any(load.queued or load.running for load in loads):
                returned = answered
                await asyncio.get_running_loop().run_in_executor(None, allocation.return_free_memory)

    def close(self) -> None:
        """Stop threads and engines, and remove all downloads."""
        self.catalog.close(drain=True, timeout=5.0)
        for pool in (self.inspection_pool, self.file_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.downloads.close()
