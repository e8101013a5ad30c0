"""How the kernel's functions are compiled: without reference counts. The state is a bundle of arrays that outlives every call and
no function makes an array of its own, while counting each array's users at each call takes most of an event's time."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    made: Any = numba.njit(cache=True, _nrt=False)(function)
    return made
