"""What every config section shares."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A closed, frozen part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())
