"""Tool calls in what a policy wrote, in the styles that models are trained on. Whatever it wrote is answered; nothing raises.

Understood: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen), `<function=NAME><parameter=KEY>value
</parameter></function>` (R2E-Gym), and a turn that is one JSON object with a name and arguments.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from libra_core.borders import half_pair
from libra_core.types.trajectory import ToolCall
from libra_core.workloads.spoken import said_aloud

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION_OPEN, _FUNCTION_CLOSE = "<function=", "</function>"
_PARAMETER_OPEN, _PARAMETER_CLOSE = "<parameter=", "</parameter>"
_WHOLE_CALL: Final = re.compile(
    r"<tool_call>(?:(?!<tool_call>).)*?</tool_call>|<function=(?:(?!<function=).)*?</function>|\A\s*\{.*\}\s*\Z", re.DOTALL
)
_NAME: Final = re.compile(r"[^<>=\s]{1,64}")
_MAX_CALL_CHARACTERS: Final = 100_000
UNKNOWN_TOOL: Final = "unknown"


def parse_tool_call(text: str) -> ToolCall | None:
    """The one call of a turn, its arguments as a JSON object in `argument`; None for a turn without one.

    A call before the last `</think>` is only thought of, while such a tag inside a call belongs to its arguments. Several calls
    in one turn, an unclosed tag or broken JSON are malformed calls; `argument` then says what is wrong.
    """
    text = said_aloud(text, _WHOLE_CALL)
    if _OPEN in text or _CLOSE in text:
        return _tagged(text)
    if _FUNCTION_OPEN in text:
        return _function(text)
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}") and '"name"' in bare:
        return _from_json(bare)
    return None


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """Arguments of a well-formed call."""
    arguments: dict[str, Any] = json.loads(call.argument)
    return arguments


def malformed(problem: str, tool: str = UNKNOWN_TOOL) -> ToolCall:
    return ToolCall(tool=tool, argument=problem, malformed=True)


def _tagged(text: str) -> ToolCall:
    if text.count(_OPEN) != 1 or text.count(_CLOSE) != 1:
        return malformed(f"a turn holds one call, {_OPEN}…{_CLOSE}; found {text.count(_OPEN)} and {text.count(_CLOSE)} tags")
    body = text.partition(_OPEN)[2]
    inner, closed, _ = body.partition(_CLOSE)
    if not closed:
        return malformed(f"{_CLOSE} comes before {_OPEN}")
    return _function(inner) if _FUNCTION_OPEN in inner else _from_json(inner.strip())


def _from_json(text: str) -> ToolCall:
    if len(text) > _MAX_CALL_CHARACTERS:
        return malformed(f"the call has {len(text)} characters; {_MAX_CALL_CHARACTERS} are allowed")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return malformed(f"the call is not JSON: {str(error)[:200]}")
    if half_pair(value) is not None:
        return malformed("the call holds half of a surrogate pair")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return malformed('the call must be an object with "name" and "arguments"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # OpenAI's style: arguments as a JSON text
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return malformed('"arguments" is a text that is not JSON', value["name"][:64])
        if half_pair(arguments) is not None:
            return malformed('"arguments" hold half of a surrogate pair', value["name"][:64])
    if not isinstance(arguments, dict):
        return malformed('"arguments" must be an object', value["name"][:64])
    return ToolCall(tool=value["name"][:64], argument=json.dumps(arguments))


def _function(text: str) -> ToolCall:
    if len(text) > _MAX_CALL_CHARACTERS:
        return malformed(f"the call has {len(text)} characters; {_MAX_CALL_CHARACTERS} are allowed")
    name, _, rest = text.partition(_FUNCTION_OPEN)[2].partition(">")
    body, closed, _ = rest.partition(_FUNCTION_CLOSE)
    if text.count(_FUNCTION_OPEN) != 1 or not closed or not _NAME.fullmatch(name):
        return malformed(f"a turn holds one call, <function=…>…</function>; found {text.count(_FUNCTION_OPEN)} openings")
    return ToolCall(tool=name, argument=json.dumps(dict(_parameters(body))))


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Linear in the length, whatever is left open."""
    for part in body.split(_PARAMETER_CLOSE)[:-1]:
        name, opened, value = part.partition(_PARAMETER_OPEN)[2].partition(">")
        if opened and _NAME.fullmatch(name):
            yield name, _trimmed(value)


def _trimmed(value: str) -> str:
    """Without the line breaks that set the value apart from its tags."""
    return value.removeprefix("\n").removesuffix("\n")
