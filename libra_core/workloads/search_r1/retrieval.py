"""BM25 over the corpus (bm25s), with the whole title as one extra term."""

from collections.abc import Sequence

from libra_core.workloads.search_r1.passages import Passage
from libra_core.workloads.search_r1.words import single_characters, words


class PassageIndex:
    """Immutable after construction, so any number of threads may search it; a search takes well under a millisecond.

    The extra title term keeps a page about `Guinea` above those that only contain the word, as the title field of a search
    engine does. Equal scores keep the order of the corpus.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        import bm25s  # pulls in numba, half a second

        self._passages = tuple(passages)
        self._bm25 = bm25s.BM25(method="lucene", backend="numpy")
        self._bm25.index([document_terms(passage) for passage in self._passages], show_progress=False)

    def search(self, query: str, top_k: int) -> tuple[Passage, ...]:
        """The best `top_k` passages that share a term with the query, best first; none for a query of unknown words."""
        known = [term for term in query_terms(query) if term in self._bm25.vocab_dict]
        if not known:
            return ()
        scores = self._bm25.get_scores(known)
        order = (-scores).argsort(kind="stable")[:top_k]
        return tuple(self._passages[int(number)] for number in order if scores[number] > 0)


def query_terms(text: str) -> list[str]:
    terms = words(text)
    return [*terms, _title_term(terms)] if terms else []


def document_terms(passage: Passage) -> list[str]:
    """None for a passage without a word."""
    title, text = words(passage.title), words(passage.text)
    singles = (*single_characters(passage.title), *single_characters(passage.text))
    return [*([_title_term(title)] if title else []), *title, *text, *singles]


def _title_term(terms: Sequence[str]) -> str:
    return "title:" + "_".join(terms)
