"""What a wheel holds beside pyproject.toml: `libra_core` alone, and in it the folders flows/, tasks/ and configs/.

Two of them have names that other packages have too, so they are no top-level packages of an installation; the command `libra`
puts their folder first on its path. An editable installation reads them where they are.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BUNDLED = ("flows", "tasks", "configs")
BUNDLE = "libra_core/_bundle"


class BuildWithBundle(build_py):
    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        for folder in BUNDLED:
            target = Path(self.build_lib) / BUNDLE / folder
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        bundle = Path(self.build_lib) / BUNDLE
        return [*super().get_outputs(include_bytecode), *(str(file) for file in bundle.rglob("*") if file.is_file())]


setup(cmdclass={"build_py": BuildWithBundle})
