"""The command `libra` of an installation: finds flows/ and tasks/, which are no packages of the environment, and hands over."""

import sys
from importlib import import_module

from libra_core.shipped import HOME
from libra_core.surroundings import children_find


def main() -> None:
    """Entry point; Prefect's runs are processes of their own and find the flows by the environment."""
    sys.path.insert(0, str(HOME))
    children_find(HOME)
    import_module("flows.cli").main()


if __name__ == "__main__":
    main()
