from dataclasses import replace

import numpy as np
import pytest

from libra_core.errors import ConfigError
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.lengths import length_table
from libra_core.types.lengths import LengthRecord

TWO_TURNS = LengthRecord(prompt_tokens=100, generated_tokens=(10, 20), tool_tokens=(50,), tool_s=(1.5,))


def test_sums_of_one_trajectory() -> None:
    table = length_table([TWO_TURNS])
    assert (table.generated_tokens[0], table.tool_tokens[0], table.tool_s[0], table.turns[0]) == (30, 50, 1.5, 2)
    assert table.total_tokens[0] == 180
    assert table.prefill_pairs[0] == 100 * 50 + 50 * (110 + 25)
    assert table.decode_context[0] == 10 * 105 + 20 * (160 + 10)


def test_return_of_the_last_tool_is_never_prefilled() -> None:
    table = length_table([replace(TWO_TURNS, tool_tokens=(50, 999), tool_s=(1.5, 99.0))])
    assert (table.tool_tokens[0], table.tool_s[0]) == (50, 1.5)


def test_one_half_life_counts_half() -> None:
    old = replace(TWO_TURNS, generated_tokens=(1000,), step=0)
    table = length_table([old, replace(TWO_TURNS, step=10)], half_life_steps=10)
    assert table.weight == pytest.approx([2 / 3, 1 / 3])
    assert list(table.generated_tokens) == [30, 1000]


def test_storing_more_of_the_past_changes_little() -> None:
    records = [replace(record, step=index // 8) for index, record in enumerate(example_records(LAWS["r2e_gym"], 1600))]
    whole, recent = length_table(records), length_table(records[-800:])
    assert whole.mean(whole.generated_tokens) == pytest.approx(recent.mean(recent.generated_tokens), rel=0.002)


def test_resampling_keeps_the_distribution() -> None:
    table = length_table(example_records(LAWS["r2e_gym"], 2048))
    small = table.resampled(256)
    assert len(small) == 256
    assert small.mean(small.generated_tokens) == pytest.approx(table.mean(table.generated_tokens), rel=0.02)
    assert small.generated_tokens.max() >= np.quantile(table.generated_tokens, 0.99)


def test_empty_history_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        length_table([])


@pytest.mark.parametrize(
    ("name", "generated", "total"), [("r2e_gym", 5100, 17400), ("search_r1", 1600, 4300), ("dapo_math", 6700, 6900)]
)
def test_example_lengths_have_the_documented_means(name: str, generated: float, total: float) -> None:
    table = length_table(example_records(LAWS[name], 4096))
    assert table.mean(table.generated_tokens) == pytest.approx(generated, rel=0.15)
    assert table.mean(table.total_tokens) == pytest.approx(total, rel=0.15)
    assert table.total_tokens.max() <= 40960
