"""Where the files that come with Libra lie: `configs/` of the repository, or their copy inside an installed package."""

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
BUNDLE: Final = PACKAGE / "_bundle"
"""Only in a wheel: the repository's folders flows/, tasks/ and configs/."""
HOME: Final = BUNDLE if BUNDLE.is_dir() else PACKAGE.parent
"""The folder that holds flows/, tasks/ and configs/."""
CONFIGS: Final = HOME / "configs"


def shipped(text: str, folder: str) -> Path | None:
    """The file that `configs/…/name.yaml`, or its name alone, means among those of `configs/<folder>`; None if there is none."""
    path = Path(text)
    if path.parts[:1] == ("configs",) and ".." not in path.parts:
        file = HOME / path
        return file if file.exists() else None
    if len(path.parts) != 1 or text in (".", ".."):
        return None
    file = CONFIGS / folder / f"{text.removesuffix('.yaml')}.yaml"
    return file if file.is_file() else None
