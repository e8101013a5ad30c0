"""What an engine process is given."""

import getpass
import os

import pytest

from libra_core.config import LibraConfig
from libra_core.runtime.base.specs import engine_spec
from libra_core.types.ids import EngineId


def test_a_user_without_a_name_has_a_folder_for_what_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nameless)
    _, environment = engine_spec(LibraConfig(), "a-folder", engine_id=EngineId("e"), tp=1, scratch="/scratch")
    assert environment["TORCHINDUCTOR_CACHE_DIR"].endswith(f"torchinductor_uid_{os.getuid()}")
