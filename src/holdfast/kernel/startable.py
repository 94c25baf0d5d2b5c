"""``Startable``: the common base of workflows, chains and graphs, with the types of their input and result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

# Type variables with a default are in `typing` from Python 3.13 on, and importing typing_extensions takes 10 ms.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    In = TypeVar("In", contravariant=True, default=Any)
    Out = TypeVar("Out", covariant=True, default=Any)
    StartParams = TypeVar("StartParams", covariant=True, default=Any)
else:
    from typing import TypeVar

    In = TypeVar("In", contravariant=True)
    Out = TypeVar("Out", covariant=True)
    StartParams = TypeVar("StartParams", covariant=True)


class Startable(Generic[In, Out]):
    """A definition that can be started: a workflow, a chain or a graph.

    ``In`` is the type of its input (None: it takes no input) and ``Out`` the type of its result. ``In`` is
    contravariant, so a definition with an optional input may also be started without input.
    """

    name: str
