"""BM25 over a user's corpus: built once, kept on disk under the corpus's own checksum, read through memory maps."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from filelock import FileLock

from libra_core.errors import ConfigError, on_the_disk
from libra_core.workloads.rows import read_rows
from libra_core.workloads.search_r1.passages import Passage
from libra_core.workloads.search_r1.retrieval import document_terms, query_terms
from libra_core.workloads.work_clock import in_thread

_FORMAT: Final = 3
"""Raised when terms or files change."""
_DONE: Final = "complete.json"


class CorpusIndex:
    """Implements `Retriever`. Immutable, so any number of threads may search it; processes share its pages."""

    def __init__(self, folder: Path) -> None:
        import bm25s

        try:
            self._bm25: Any = bm25s.BM25.load(str(folder), mmap=True, load_corpus=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the index {folder} is damaged ({error}); remove it, and it is built anew") from None

    async def search(self, query: str, top_k: int) -> Sequence[Passage]:
        return await in_thread(self.best, query, top_k)

    def best(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The best passages that share a term with the query; equal scores keep the order of the corpus."""
        known = [term for term in query_terms(query) if term in self._bm25.vocab_dict]
        if not known:
            return ()
        scores: np.ndarray[Any, Any] = self._bm25.get_scores(known)
        top_k = min(top_k, len(scores))
        least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
        order = candidates[np.argsort(-scores[candidates], kind="stable")][:top_k]
        return tuple(_passage(self._bm25.corpus[int(number)]) for number in order)


def open_corpus(corpus: Path, cache: Path) -> CorpusIndex:
    """The index of a corpus file, built when `cache` lacks it; one process at a time builds.

    Raises:
        ConfigError: for a file that cannot be read or has a row that is no passage.
    """
    folder = index_folder(corpus, cache)
    if not (folder / _DONE).is_file():
        with on_the_disk(folder.parent, "choose another run.root"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock")):
                if not (folder / _DONE).is_file():
                    _build(corpus, folder)
    return CorpusIndex(folder)


def index_folder(corpus: Path, cache: Path) -> Path:
    if not corpus.is_file():
        raise ConfigError(f"no corpus at {corpus}; workload.corpus names a JSONL or JSON file of passages")
    digest = hashlib.sha256(f"{_FORMAT}".encode())
    with corpus.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return cache / digest.hexdigest()[:16]


def _build(corpus: Path, folder: Path) -> None:
    import bm25s

    passages = list(read_passages(corpus))
    if not passages:
        raise ConfigError(f"{corpus} holds no passages")
    terms = [document_terms(passage) for passage in passages]
    if not any(terms):
        raise ConfigError(f"none of the {len(passages)} passages of {corpus} holds a word, so that no query can find any")
    bm25 = bm25s.BM25(method="lucene", backend="numpy")
    bm25.index(terms, show_progress=False)
    scratch = folder.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    rows = [{"title": passage.title, "text": passage.text} for passage in passages]
    bm25.save(str(scratch), corpus=rows, show_progress=False)
    (scratch / _DONE).write_text(json.dumps({"passages": len(passages), "corpus": str(corpus)}), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def read_passages(corpus: Path) -> Iterator[Passage]:
    """Rows with `contents` (its first line is the title, as in Search-R1's wiki-18) or with `title` and `text`."""
    for number, row in enumerate(read_rows(corpus), start=1):
        contents, text = row.get("contents"), row.get("text")
        if isinstance(contents, str):
            title, _, body = contents.partition("\n")
            yield Passage(title=title.strip().strip('"'), text=body.strip() or title.strip())
        elif isinstance(text, str):
            yield Passage(title=str(row.get("title") or ""), text=text)
        else:
            keys = ", ".join(sorted(row)) or "no keys"
            raise ConfigError(f"{corpus}, row {number} is no passage: it has {keys}; expected is contents, or title and text")


def _passage(row: dict[str, str]) -> Passage:
    return Passage(title=row["title"], text=row["text"])
