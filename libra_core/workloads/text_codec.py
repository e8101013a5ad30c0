"""Text to token ids and back by the Rust tokenizer alone; importing transformers or torch would cost seconds."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from libra_core.errors import ModelFolderError


class TextCodec:
    """Encodes without adding special tokens; decodes with every token visible. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain: Tokenizer | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "TextCodec":
        """Raises `ModelFolderError` when `tokenizer.json` is missing or unreadable."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(f"{folder} has no tokenizer.json; copy the model's tokenizer files into the folder")
        return _loaded(path.resolve(), path.stat().st_mtime_ns)

    @property
    def size(self) -> int:
        """Tokens, added ones included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """A special token spelled in `text` becomes the tokens of its letters."""
        if self._plain is None:
            self._plain = Tokenizer.from_str(self._tokenizer.to_str())
            self._plain.encode_special_tokens = True
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def special(self, text: str) -> int | None:
        """Id of a special token, or None when the tokenizer has no such token."""
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id is not None and len(self.encode(text)) == 1 else None

    def containing(self, character: str) -> tuple[int, ...]:
        """Ids of all tokens whose text holds an ASCII character."""
        return tuple(sorted(token_id for text, token_id in self._tokenizer.get_vocab().items() if character in text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def pieces(self) -> tuple[str, ...]:
        """The text of every ASCII token, special ones included, without leading spaces."""
        texts = [self.decode((token_id,)).strip() for token_id in range(self._tokenizer.get_vocab_size())]
        return tuple(text for text in texts if text and text.isascii())

    def token(self, text: str) -> int:
        """Id of a text that is one token; raises `ModelFolderError` when it is several.

        A general-purpose tokenizer splits a tag such as `</search>` into pieces, and then no stop token can end a turn.
        """
        ids = self.encode(text)
        if len(ids) != 1:
            raise ModelFolderError(
                f"the tokenizer splits {text!r} into {len(ids)} tokens, but search_r1 needs it as one special token; "
                "add the tags to the tokenizer as special tokens and resize the model's embeddings"
            )
        return ids[0]


@lru_cache(maxsize=2)
def _loaded(path: Path, changed_ns: int) -> TextCodec:
    """A large one takes half a second."""
    try:
        return TextCodec(Tokenizer.from_file(str(path)))
    except Exception as error:  # the Rust library raises bare Exception
        raise ModelFolderError(f"{path} is not a tokenizer that `tokenizers` can load ({error}); copy it again") from None
