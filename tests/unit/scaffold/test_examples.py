"""The examples that start nothing run, and say what their texts promise. That of a simulated run: `integration/simulation`."""

import pytest

from support.examples import FOLDER, example


def test_every_example_is_listed_in_their_readme() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [path.name for path in sorted(FOLDER.glob("*.py")) if path.name not in listed] == []


def test_a_cluster_is_planned_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    planner = example("plan_a_cluster")
    tight, loose = planner.plan_at(0).best, planner.plan_at(4).best
    assert tight.num_gpus <= 48
    assert loose.forecast.t_iter_s < tight.forecast.t_iter_s
    planner.main()
    assert "binds" in capsys.readouterr().out


def test_a_policy_that_reads_tool_returns_beats_one_that_does_not() -> None:
    figures = example("routing_policy").compare()
    assert figures["expected_cost"].regret_s < figures["mine"].regret_s < figures["least_loaded"].regret_s


def test_a_reward_function_is_called_with_what_the_agent_said() -> None:
    stock = example("reward_function")
    looked = stock.play(stock.Looker(), 6)
    guessed = stock.play(stock.Guesser(), 6)
    assert (looked.mean_reward, looked.tool_calls, looked.lost) == (1.0, {"ok": 6}, 0)
    assert 0 < guessed.mean_reward < 1, "11 is one off from the twelve pears, and nothing else"
    assert guessed.tool_calls == {}
