"""What every config section shares."""

from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A closed, frozen part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


def sections_of(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The section that a field holds, or each one that it may hold according to its `kind`; none for a plain value."""
    if isinstance(annotation, type):
        return (annotation,) if issubclass(annotation, BaseModel) else ()
    parts = get_args(annotation)
    members = parts[:1] if get_origin(annotation) is Annotated else parts
    found = [sections_of(member) for member in members]
    return tuple(section for sections in found for section in sections) if all(found) else ()


def kind_of(section: type[BaseModel]) -> str:
    """The `kind` that chooses it among others."""
    return str(section.model_fields["kind"].default)
