"""The tags of a conversation, each one token, and the shape of a prompt.

A name is always written with a leading space, in questions, passages, queries and answers alike, so that it has the same
tokens everywhere and copying it is a copy of tokens.
"""

from typing import Final

PAD: Final = "<|endoftext|>"
MESSAGE_START: Final = "<|im_start|>"
MESSAGE_END: Final = "<|im_end|>"
SEARCH_START: Final = "<search>"
SEARCH_END: Final = "</search>"
INFORMATION_START: Final = "<information>"
INFORMATION_END: Final = "</information>"
ANSWER_START: Final = "<answer>"
ANSWER_END: Final = "</answer>"
SPECIAL_TOKENS: Final = (
    PAD,
    MESSAGE_START,
    MESSAGE_END,
    SEARCH_START,
    SEARCH_END,
    INFORMATION_START,
    INFORMATION_END,
    ANSWER_START,
    ANSWER_END,
)

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt_text(question: str) -> str:
    """The question as the chat template renders it."""
    return f"{MESSAGE_START}user\n{question}{MESSAGE_END}\n{MESSAGE_START}assistant\n"


def search_text(query: str) -> str:
    return f"{SEARCH_START} {query}{SEARCH_END}"


def information_text(body: str) -> str:
    return f"{INFORMATION_START} {body}{INFORMATION_END}"


def answer_text(answer: str) -> str:
    return f"{ANSWER_START} {answer}{ANSWER_END}{MESSAGE_END}"
