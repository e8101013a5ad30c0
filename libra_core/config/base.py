"""What every config section shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

MAX_COUNT: Final = 2**31 - 1
MAX_S: Final = 366 * 24 * 3600.0
"""A year. Timers of Python and of the libraries below take no much longer wait."""
MAX_NUMBER: Final = 1e18
"""Of numbers that are neither counts nor seconds."""

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Section(BaseModel):
    """A closed, frozen part of the configuration; unknown keys are refused, and so are numbers that are none or have no bound."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_undisguised(cls, value: Any, info: ValidationInfo) -> Any:
        _refuse_disguise(cls.model_fields[str(info.field_name)].annotation, value)
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _is_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if not any(hasattr(item, "le") or hasattr(item, "lt") for item in cls.model_fields[name].metadata):
            _refuse_beyond(value, name)
        return value


def _refuse_disguise(annotation: Any, value: Any) -> None:
    """Text and true or false are no numbers, and numbers are not true or false, though pydantic would take them."""
    kinds = _scalars_of(annotation)
    if isinstance(value, Mapping):
        for item in value.values():
            _refuse_disguise(get_args(annotation)[-1] if get_origin(annotation) is dict else None, item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            _refuse_disguise(annotation, item)
    elif kinds and kinds <= {int, float} and isinstance(value, str | bool):
        raise PydanticCustomError("not_a_number", "this is no number in plain digits, such as 10 or 1.5e-3")
    elif kinds == {bool} and isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("not_a_bool", "input should be true or false")


def _scalars_of(annotation: Any) -> set[type]:
    """Of a plain value, or of the items of a sequence, None left out; empty for sections and for anything else."""
    if annotation in (int, float, bool, str):
        return {annotation}
    origin = get_origin(annotation)
    if origin is Annotated:
        return _scalars_of(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple, list):
        parts = [_scalars_of(part) for part in get_args(annotation) if part not in (type(None), ...)]
        return set[type]().union(*parts) if all(parts) else set()
    return set()


@dataclass(frozen=True, slots=True)
class TextKey:
    """Whether a key holds one text, and whether it may be unset."""

    is_text: bool
    may_be_unset: bool


def text_key(annotation: Any) -> TextKey:
    """Of a key's annotation: text, or one of several words."""
    if get_origin(annotation) is Annotated:
        return text_key(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [text_key(part) for part in get_args(annotation) if part is not type(None)]
        return TextKey(is_text=all(part.is_text for part in parts), may_be_unset=type(None) in get_args(annotation))
    words = get_origin(annotation) is Literal and all(isinstance(word, str) for word in get_args(annotation))
    return TextKey(is_text=annotation is str or words, may_be_unset=False)


def _refuse_beyond(value: Any, name: str) -> None:
    if isinstance(value, Mapping):
        for item in value.values():
            _refuse_beyond(item, name)
    elif isinstance(value, tuple | list):
        for item in value:
            _refuse_beyond(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        bound = MAX_COUNT if isinstance(value, int) else MAX_S if name.endswith("_s") else MAX_NUMBER
        if abs(value) > bound:
            raise PydanticCustomError("beyond_bound", "input should be at most {bound}", {"bound": f"{bound:,.0f}"})


def sections_of(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The section that a field holds, or each one that it may hold according to its `kind`; none for a plain value."""
    if isinstance(annotation, type):
        return (annotation,) if issubclass(annotation, BaseModel) else ()
    parts = get_args(annotation)
    members = parts[:1] if get_origin(annotation) is Annotated else parts
    results = [sections_of(member) for member in members]
    return tuple(section for sections in results for section in sections) if all(results) else ()


def kind_of(section: type[BaseModel]) -> str:
    """The `kind` that chooses it among others."""
    return str(section.model_fields["kind"].default)
