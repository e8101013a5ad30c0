"""The retriever port, and what servers need around it: a deadline, tries, a pace, a memory."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from libra_core.errors import RetrieverError
from libra_core.workloads.search_r1.passages import Passage
from libra_core.workloads.work_clock import queued


class Retriever(Protocol):
    async def search(self, query: str, top_k: int) -> Sequence[Passage]:
        """Best first; fewer or none when little matches. Raises `RetrieverError` when it cannot tell."""
        ...


class PatientRetriever:
    """Implements `Retriever` around one that may fail: tries again with growing pauses, keeps a pace, remembers answers."""

    def __init__(
        self,
        ask: Callable[[str, int], Awaitable[Sequence[Passage]]],
        *,
        tries: int,
        requests_per_s: float | None = None,
        cache_size: int = 0,
        pause_s: float = 0.25,
    ) -> None:
        self._ask = ask
        self._tries = tries
        self._pause_s = pause_s
        self._interval_s = 1.0 / requests_per_s if requests_per_s else 0.0
        self._next_s = 0.0
        self._cache: OrderedDict[tuple[str, int], Sequence[Passage]] = OrderedDict()
        self._cache_size = cache_size

    async def search(self, query: str, top_k: int) -> Sequence[Passage]:
        key = (" ".join(query.split()), top_k)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RetrieverError),
            stop=stop_after_attempt(self._tries),
            wait=wait_exponential(multiplier=self._pause_s, max=10.0),
            reraise=True,
        )
        hits = await retrying(self._paced, *key)
        self._cache[key] = hits
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return hits

    async def _paced(self, query: str, top_k: int) -> Sequence[Passage]:
        now_s = time.monotonic()
        start_s = max(now_s, self._next_s)
        self._next_s = start_s + self._interval_s
        with queued("workload.retriever_requests_per_s"):
            await asyncio.sleep(start_s - now_s)
        return await self._ask(query, top_k)


class HttpRetriever:
    """Search-R1's retrieval server: `POST /retrieve` with `queries`, `topk` and `return_scores`."""

    def __init__(self, url: str, deadline_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self._client = httpx.AsyncClient(timeout=deadline_s, transport=transport)

    async def ask(self, query: str, top_k: int) -> Sequence[Passage]:
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        answer = await fetched(self._url, self._client.post(self._url, json=body))
        try:
            return tuple(_document(entry) for entry in answer["result"][0][:top_k])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise RetrieverError(f"{self._url} answered in no form of Search-R1's protocol ({error!r})") from None


class SearxngRetriever:
    """A SearXNG instance with `json` among its formats."""

    def __init__(self, url: str, deadline_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/search')}/search"
        self._client = httpx.AsyncClient(timeout=deadline_s, transport=transport)

    async def ask(self, query: str, top_k: int) -> Sequence[Passage]:
        answer = await fetched(self._url, self._client.get(self._url, params={"q": query, "format": "json"}))
        try:
            return tuple(
                Passage(title=_text(entry.get("title")), text=_text(entry.get("content"))) for entry in answer["results"][:top_k]
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RetrieverError(f"{self._url} answered in no form of SearXNG's JSON ({error!r})") from None


async def fetched(url: str, request: Awaitable[httpx.Response]) -> Any:
    """The JSON object of an answer; whatever else comes is a `RetrieverError`."""
    try:
        response = await request
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as error:
        raise RetrieverError(f"{url} answered with status {error.response.status_code}") from None
    except httpx.HTTPError as error:
        raise RetrieverError(f"{url} cannot be reached: {type(error).__name__} {error}") from None
    except ValueError:
        raise RetrieverError(f"{url} answered with what is not JSON") from None


def _document(entry: Any) -> Passage:
    document = entry.get("document", entry)
    contents = document.get("contents")
    if contents is None:
        return Passage(title=_text(document.get("title")), text=_text(document["text"]))
    title, _, text = _text(contents).partition("\n")
    return Passage(title=title.strip().strip('"'), text=text.strip() or title.strip())


def _text(value: Any) -> str:
    """Whole text that a tokenizer takes; empty where there is none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} instead of a text")
    return value.encode("utf-8", errors="replace").decode()
