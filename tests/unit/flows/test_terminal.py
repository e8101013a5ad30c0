"""Text of users and of notes reaches the terminal as it was written."""

import io
import re
from pathlib import Path

import pytest
from rich.table import Table

import flows
from flows.command_line.terminal import terminal
from flows.views.console import make_board

SIGNS = "--set planner.modes=[asynchronous] [bold]run[/bold] [/] :smile: [link=x]"


def shown(*things: object, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    console = terminal(width=200)
    monkeypatch.setattr(console, "file", stream)
    console.print(*things, sep="\n", highlight=False, soft_wrap=True)
    return stream.getvalue()


def test_brackets_of_a_value_are_no_markup_in_lines_titles_and_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(title=f"title {SIGNS}")
    table.add_column(f"column {SIGNS}")
    table.add_row(f"cell {SIGNS}")
    assert shown(SIGNS, table, monkeypatch=monkeypatch).count(SIGNS) == 4


def test_a_phase_with_brackets_is_shown_whole_by_both_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    for in_terminal in (False, True):
        stream, console = io.StringIO(), terminal(width=200)
        monkeypatch.setattr(console, "file", stream)
        monkeypatch.setattr(console, "_force_terminal", in_terminal)
        with make_board(console) as board:
            board.phase("engines [1/2] start", 0.5)
        assert "engines [1/2] start" in stream.getvalue()


def test_every_command_prints_to_the_one_kind_of_console() -> None:
    folder = Path(flows.__file__).parent
    makers = [
        path.name for path in folder.rglob("*.py") if re.search(r"\b(Console|TextColumn)\((?!.*markup=False)", path.read_text())
    ]
    assert makers == []
