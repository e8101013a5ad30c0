"""`libra route-eval` and the evaluation behind it, on a small recording."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.errors import ConfigError
from libra_core.routing.evaluate.evaluation import EvaluationSettings, evaluate, half_width
from libra_core.routing.evaluate.verdict import verdicts
from support.recordings import line, recorded, recording

CHEAP = ("expected_cost", "sticky", "mlfq", "prompt_mean", "oracle")
SMALL = EvaluationSettings(policies=CHEAP, shuffles=2, in_flight=4)


def lines(prompts: int = 12, samples: int = 4) -> list[str]:
    """Prompt k takes k turns of 40 tokens in each sample."""
    return [
        line(
            task=f"t{prompt}",
            gen_tok=[40] * (prompt + 1),
            tool=["search"] * (prompt + 1),
            status=["ok"] * (prompt + 1),
            ret_tok=[20] * (prompt + 1),
        )
        for _ in range(samples)
        for prompt in range(prompts)
    ]


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["route-eval", *arguments])
    return done.exit_code, done.output


def test_where_prompts_repeat_themselves_the_router_wins() -> None:
    every = [recorded(f"p{prompt}", *[40] * (prompt + 1), sample=sample) for sample in range(6) for prompt in range(12)]
    rows = evaluate("set", every, SMALL)
    assert {(row.policy, row.order) for row in rows} == {(name, order) for name in CHEAP for order in ("recorded", "grpo")}
    found = {(row.policy, row.order): row for row in rows}
    for order in ("recorded", "grpo"):
        assert found["oracle", order].figures.regret_s == pytest.approx(0, abs=1e-6)
        assert found["expected_cost", order].figures.regret_s < found["sticky", order].figures.regret_s
        assert found["expected_cost", order].figures.regret_s < found["mlfq", order].figures.regret_s
        assert found["oracle", order].figures.one_hop_accuracy == 1.0
    assert found["sticky", "recorded"].figures.moves_per_trajectory == 0
    assert all(row.later is not None for row in rows)


def test_the_same_seed_gives_the_same_figures() -> None:
    every = [recorded(f"p{prompt}", *[40] * (prompt + 1), sample=sample) for sample in range(3) for prompt in range(8)]
    first, second = (evaluate("set", every, SMALL) for _ in range(2))
    assert [row.figures.regret_s for row in first] == [row.figures.regret_s for row in second]


def test_verdicts_compare_the_best_variant_with_the_best_baseline() -> None:
    every = [recorded(f"p{prompt}", *[40] * (prompt + 1), sample=sample) for sample in range(6) for prompt in range(12)]
    for verdict in verdicts(evaluate("set", every, SMALL)):
        assert verdict.variant == "expected_cost"
        assert verdict.best_baseline in ("sticky", "mlfq", "prompt_mean")
        assert verdict.lower_regret == (verdict.regret_s < verdict.baseline_regret_s)
        assert set(verdict.rivals_f1) == {"majority", "mlfq"}
        assert verdict.higher_f1


def test_half_width_is_that_of_student() -> None:
    assert half_width([1.0]) == 0.0
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30 / 3**0.5)


def test_a_set_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="no part to warm up on"):
        evaluate("set", [recorded("p", 10)], SMALL)


def test_json_ends_with_rows_and_verdicts_and_the_figure_is_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "regret.svg"
    policies = [part for name in CHEAP for part in ("--policy", name)]
    code, output = run(str(recording(tmp_path, *lines())), *policies, "--shuffles", "1", "--figure", str(picture), "--json")
    assert code == 0, output
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {row["policy"] for row in found["rows"]} == set(CHEAP)
    assert {item["order"] for item in found["verdicts"]} == {"recorded", "grpo"}
    assert picture.read_text().startswith("<?xml")


def test_the_table_names_policies_and_majority(tmp_path: Path) -> None:
    code, output = run(str(recording(tmp_path, *lines())), "--policy", "mlfq", "--policy", "expected_cost", "--shuffles", "1")
    assert code == 0, output
    for word in ("mlfq", "expected_cost", "majority", "set, grpo order", "regret"):
        assert word in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "magic"], "'magic' is unknown"),
        (["--buckets", "P50,400"], "all tokens or all quantiles"),
        (["--buckets", "9,4"], "ascending"),
        (["--buckets", "1,2,3,4"], "names 4 limits"),
        (["--buckets", "soon"], "no list of limits"),
        (["--buckets", "P50,P100"], "below P100"),
        (["--buckets", "Pnan"], "a finite number"),
        (["--buckets", "4000,inf"], "a finite number"),
        (["--epochs", "0"], "--epochs is 0"),
        (["--start", "large"], "--start 'large'"),
    ],
)
def test_wrong_options_are_sentences(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    code, output = run(str(recording(tmp_path, *lines())), *arguments)
    assert code == 2
    assert sentence in output.replace("\n", " ")


def test_two_files_of_one_name_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    path = str(recording(tmp_path, *lines()))
    assert "two files are called set" in run(path, path, "--policy", "mlfq")[1]
    assert "cannot read" in run(str(tmp_path / "none.jsonl"), "--policy", "mlfq")[1]


def test_limits_may_be_tokens(tmp_path: Path) -> None:
    code, output = run(str(recording(tmp_path, *lines())), "--policy", "mlfq", "--buckets", "100,300", "--shuffles", "1")
    assert code == 0, output
