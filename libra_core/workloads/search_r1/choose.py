"""The configured retriever."""

from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.config.workload import SearchR1Config
from libra_core.errors import ConfigError
from libra_core.workloads.search_r1.corpus_index import open_corpus
from libra_core.workloads.search_r1.retrievers import HttpRetriever, PatientRetriever, Retriever, SearxngRetriever


def index_cache(config: LibraConfig) -> Path:
    """Where indexes of corpora are kept, for `libra data prepare` and for runs."""
    return Path(config.run.root) / "cache" / "bm25"


def open_retriever(settings: SearchR1Config, cache: Path) -> Retriever:
    """Raises `ConfigError` when the corpus is missing or wrong; its index is built when the cache lacks it."""
    if settings.retriever == "bm25":
        if settings.corpus is None:
            raise ConfigError("workload.retriever = bm25 needs workload.corpus, a JSONL or JSON file of passages")
        return open_corpus(Path(settings.corpus), cache)
    assert settings.url is not None
    server = HttpRetriever if settings.retriever == "http" else SearxngRetriever
    return PatientRetriever(
        server(settings.url, settings.retriever_deadline_s).ask,
        tries=settings.retriever_tries,
        requests_per_s=settings.retriever_requests_per_s,
        cache_size=settings.retriever_cache,
    )
