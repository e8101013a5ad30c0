"""A picture of a routing evaluation: regret by policy, one panel per data set and order."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from libra_core.errors import ConfigError
from libra_core.routing.build import READS_TREE
from libra_core.routing.evaluate.evaluation import PolicyRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS, _OTHERS = "#1f6f8b", "#b0b7bc"


def draw_routing(rows: Sequence[PolicyRow], path: Path) -> None:
    """Write the figure in the format that the file's ending names; raises `ConfigError` when that is impossible."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    orders = list(dict.fromkeys(row.order for row in rows))
    sets = list(dict.fromkeys(row.data_set for row in rows))
    figure, axes = pyplot.subplots(len(sets), len(orders), figsize=(6 * len(orders), 2.4 * len(sets)), squeeze=False)
    for line, data_set in enumerate(sets):
        for column, order in enumerate(orders):
            _panel(axes[line][column], [row for row in rows if row.data_set == data_set and row.order == order])
            axes[line][column].set_title(f"{data_set}, {order} order", fontsize=9)
    figure.supxlabel("regret per trajectory (s); C-MLFQ in blue", fontsize=9)
    figure.tight_layout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the figure {path}: {error}") from None
    finally:
        pyplot.close(figure)


def _panel(axis: "Axes", rows: Sequence[PolicyRow]) -> None:
    names = [row.policy for row in rows][::-1]
    axis.barh(
        names,
        [row.figures.regret_s for row in rows][::-1],
        xerr=[row.regret_interval_s for row in rows][::-1],
        color=[_OURS if name in READS_TREE else _OTHERS for name in names],
    )
    axis.tick_params(labelsize=7)
