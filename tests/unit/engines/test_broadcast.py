"""Sending weights to a group that may break on the way."""

from typing import Any

import pytest
import torch

from libra_core.engines.broadcast import send_all
from libra_core.errors import ResourceError


class Group:
    """Breaks at one tensor."""

    def __init__(self, breaks_at: int) -> None:
        self.breaks_at = breaks_at
        self.sent: list[float] = []

    def broadcast(self, tensor: Any) -> None:
        if len(self.sent) == self.breaks_at:
            raise RuntimeError("Connection reset by peer\nand more")
        self.sent.append(float(tensor))


def test_all_tensors_are_sent_in_order() -> None:
    group = Group(breaks_at=9)
    send_all(group, (torch.tensor(float(number)) for number in range(3)))  # type: ignore[arg-type]
    assert group.sent == [0.0, 1.0, 2.0]


def test_a_broken_group_gets_no_more_but_the_other_ranks_of_the_trainer_gather_to_the_end() -> None:
    group, drawn = Group(breaks_at=1), list[int]()

    def tensors() -> Any:
        for number in range(4):
            drawn.append(number)
            yield torch.tensor(float(number))

    with pytest.raises(ResourceError, match=r"the broadcast of weights broke: Connection reset by peer$"):
        send_all(group, tensors())  # type: ignore[arg-type]
    assert (group.sent, drawn) == ([0.0], [0, 1, 2, 3])
