from pathlib import Path

import pytest

from libra_core.errors import ConfigError
from libra_core.planning.history_file import read_history


def write(folder: Path, text: str) -> Path:
    path = folder / "history.jsonl"
    path.write_text(text)
    return path


def test_reads_records_and_skips_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt_tokens": 5, "generated_tokens": [3, 4], "tool_tokens": [2], "tool_s": [0.5], "step": 7}\n\n')
    (record,) = read_history(path)
    assert (record.prompt_tokens, record.generated_tokens, record.tool_s, record.step) == (5, (3, 4), (0.5,), 7)


def test_the_last_line_of_a_killed_run_may_be_cut_and_no_other_file_s(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt_tokens": 5, "generated_tokens": [3]}\n{"prompt_tok')
    with pytest.raises(ConfigError, match="line 2 is not JSON"):
        read_history(path)
    (tmp_path / "journal.json").write_text("{}")
    assert len(read_history(path)) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "line 1 is not JSON"),
        ('{"prompt_tokens": 5}', "must hold prompt_tokens and generated_tokens"),
        ('{"prompt_tokens": 5, "generated_tokens": [1], "reward": 1}', "nothing but"),
        ('{"prompt_tokens": 5, "generated_tokens": []}', "at least one token"),
        ('{"prompt_tokens": -5, "generated_tokens": [1]}', "prompt_tokens is -5"),
        ('{"prompt_tokens": "x", "generated_tokens": [1]}', "prompt_tokens is 'x'"),
        ("[1, 2]", "must hold"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_history(write(tmp_path, text))
    assert "history.jsonl" in str(caught.value)


def test_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the length history"):
        read_history(tmp_path / "none.jsonl")
