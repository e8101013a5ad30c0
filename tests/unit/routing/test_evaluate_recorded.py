"""Recordings are read as they are, and mistakes in them are named."""

import gzip
from pathlib import Path

import pytest

from libra_core.config.loading import data_folder
from libra_core.errors import ConfigError
from libra_core.routing.evaluate.recorded import UNRECORDED_TOOL_S, read_prompts, read_recorded
from libra_core.types.trajectory import ToolStatus
from support.recordings import line, recording

SETS = {
    "autocoderover_swebenchlite": (585, 1_141_912),
    "hotpotqa_react_reflexion": (357, 63_402),
    "minisweagent_terminalbench": (115, 594_411),
    "qwen25math_8samples": (576, 234_483),
    "sweagent_swebenchlite": (574, 979_089),
    "taubench_airline": (152, 116_973),
}


def test_a_line_becomes_turns(tmp_path: Path) -> None:
    (found,) = read_recorded(recording(tmp_path, line(tool_s=[0.5, None])), {"a": "the text"})
    assert [turn.generated_tokens for turn in found.turns] == [5, 7]
    assert (found.turns[0].tool, found.turns[0].status) == ("search", ToolStatus.ERROR)
    assert [turn.tool_s for turn in found.turns] == [0.5, UNRECORDED_TOOL_S]
    assert (found.prompt_text, found.generated_tokens) == ("the text", 12)
    assert found.final_tokens == 10 + 12 + 3


def test_gzipped_files_are_read_alike(tmp_path: Path) -> None:
    plain = recording(tmp_path, line(), line(task="b"))
    packed = tmp_path / "set.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_recorded(packed) == read_recorded(plain)


def test_trajectories_without_tokens_are_left_out(tmp_path: Path) -> None:
    found = read_recorded(recording(tmp_path, line(gen_tok=[0, 0]), line(task="b")))
    assert [item.prompt_id for item in found] == ["b"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 must hold an object"),
        (line(ret_tok=None), "line 1 lacks ret_tok"),
        (line(gen_tok=[1]), "lists of one length"),
        (line(gen_tok=[]), "lists of one length"),
        (line(gen_tok=[-1, 2]), "gen_tok is -1"),
        (line(ret_tok=[1.5, 2]), "ret_tok is 1.5"),
        (line(status=["odd", "ok"]), "status 'odd' is none of ok"),
        (line(status=[["ok"], "ok"]), "is none of ok"),
        (line(tool_s=5), "tool_s must be a list"),
        (line(tool_s=["soon", 1.0]), "tool_s is 'soon'"),
        (line(tool_s=[float("nan"), 1.0]), "tool_s is nan"),
        (line(tool_s=[1.0]), "tool_s has 1 entries for 2 turns"),
        (line(gen_tok=[0, 0]), "holds no trajectory"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_recorded(recording(tmp_path, text))


def test_a_missing_or_cut_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_recorded(tmp_path / "none.jsonl")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(ConfigError, match="cannot read"):
        read_recorded(cut)
    cut.write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
    with pytest.raises(ConfigError, match="cannot read"):
        read_recorded(cut)


def test_prompts_are_read_by_either_name(tmp_path: Path) -> None:
    path = recording(tmp_path, '{"task": "a", "text": "A"}', '{"instance_id": "b", "problem_statement": "B"}')
    assert read_prompts(path) == {"a": "A", "b": "B"}
    with pytest.raises(ConfigError, match="line 1 must hold task"):
        read_prompts(recording(tmp_path, '{"task": "a"}'))


@pytest.mark.parametrize("name", SETS)
def test_the_recorded_sets_are_complete(name: str) -> None:
    path = data_folder() / "trajectories" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here; set LIBRA_DATA to the folder of recorded data")
    found = read_recorded(path)
    assert (len(found), sum(item.generated_tokens for item in found)) == SETS[name]
