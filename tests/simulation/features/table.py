"""The table of features. Programs and requests of clients are generated from it, and pairs of features are counted.

To add a feature, add one entry. ``docs/reliability.md`` ("Adding a feature") describes the fields and gives examples.
The draws of a feature depend on its name only, so an entry does not change programs in which it does not occur.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import InstanceExistsError, StateError
from simulation.features import bulk, parts, repairs
from simulation.features.feature import ControlRequest, Feature
from simulation.programs.names import NEW, OLD

if TYPE_CHECKING:
    from holdfast.client import Client

_REFUSED = (StateError,)


def _control(name: str, *args: Any) -> Callable[[Client, str, str, Any], Awaitable[object]]:
    """A request of ``client.control``."""
    return lambda client, workflow, instance, _details: getattr(client.control, name)(workflow, instance, *args)


FEATURES: tuple[Feature, ...] = (
    # --- steps
    Feature("step", part=parts.step, weight=2.5, copies=5),
    Feature("plain_step", part=parts.plain_step, kinds=("plain",)),
    Feature("retries", part=parts.retries, kinds=("retries",)),
    Feature("exhausted_retries", part=parts.exhausted_retries, kinds=("gives_up",)),
    Feature("failing_step", part=parts.failing_step, kinds=("broken", "broken_chain", "broken_graph"), weight=1.3),
    Feature("timeouts", part=parts.timeouts, kinds=("too_slow",)),
    Feature("fatal_step", part=parts.fatal_step, kinds=("poison",)),
    Feature("heartbeats"),
    Feature("renamed_step"),
    Feature("streams", part=parts.streams, kinds=("stream",), copies=2),
    Feature("codec_and_blobs"),
    Feature("step_tx", part=parts.step_tx, kinds=("tx",)),
    Feature("live_transaction", part=parts.live_transaction, kinds=("live",), weight=1.3, copies=2),
    Feature("saga", part=parts.saga, copies=2),
    Feature("version", part=parts.version, outermost=True),
    # --- waits
    Feature("sleep", part=parts.sleep, weight=1.5, copies=2),
    Feature("event", part=parts.event, weight=1.5, copies=2),
    Feature("messages", part=parts.messages, weight=1.5, copies=3, outermost=True),
    Feature("declared_events", part=parts.declared_events, kinds=("parcels",), outermost=True),
    Feature("invalid_events", part=parts.invalid_events, kinds=("misfit",)),
    # --- other runs
    Feature("message_to_run", part=parts.message_to_run, kinds=("tell",)),
    Feature("ask", part=parts.ask),
    Feature("link", part=parts.link),
    Feature("linked_failure", part=parts.linked_failure, kinds=("bound",)),
    Feature("monitor", part=parts.monitor),
    Feature("child_chain", part=parts.child_chain, kinds=("chain",)),
    Feature("chain_leases", part=parts.chain_leases, kinds=("leased",)),
    Feature("child_graph", part=parts.child_graph, kinds=("graph",)),
    Feature("nodes_with_runs", part=parts.nodes_with_runs, kinds=("family",)),
    Feature("failing_items", part=parts.failing_items, kinds=("sieve",)),
    Feature("child_workflow", around="child"),
    Feature("abandoned_child", around="abandon"),
    Feature("parallel", around="par"),
    Feature("race", around="race"),
    # --- within chains and graphs
    Feature("chain_waits"),
    Feature("outbox"),
    Feature("map"),
    Feature("condition"),
    # --- whole runs
    Feature("continue_as_new"),
    Feature("persist_step"),
    Feature("persist_task"),
    Feature("changed_code"),
    Feature("schedule"),
    Feature("database_move"),
    # --- requests of clients
    Feature("pause", request=ControlRequest(_control("pause"), then="resume", weight=1)),
    Feature("resume", request=ControlRequest(_control("resume"), weight=0)),
    Feature("cancel", request=ControlRequest(_control("cancel"), end="cancelled")),
    Feature("terminate", request=ControlRequest(_control("terminate"), end="terminated")),
    Feature("restart", request=ControlRequest(_control("restart"), begins_again=True, weight=1)),
    Feature("move", request=ControlRequest(_control("move", NEW), then="move_back", weight=1)),
    Feature("move_back", request=ControlRequest(_control("move", OLD), weight=0)),
    Feature("retry", request=ControlRequest(repairs.retry, tries=40, refused=_REFUSED, if_it_breaks=0.8)),
    Feature(
        "resolve",
        request=ControlRequest(
            repairs.resolve, details=repairs.resolvable, tries=40, refused=_REFUSED, if_it_breaks=0.5
        ),
    ),
    Feature(
        "fork",
        request=ControlRequest(
            repairs.fork, details=repairs.forkable, tries=10, refused=(*_REFUSED, InstanceExistsError), if_it_breaks=0.3
        ),
    ),
    Feature("delete", request=ControlRequest(repairs.delete, tries=30, refused=_REFUSED, removes=True, weight=0.5)),
    Feature("prune", request=ControlRequest(repairs.prune, removes=True, weight=0.5)),
    Feature("check", request=ControlRequest(repairs.check_nothing, weight=0.8)),
    Feature("bulk", request=ControlRequest(bulk.bulk, details=bulk.draw_bulk, weight=0.8)),
)

BY_NAME = {feature.name: feature for feature in FEATURES}
REQUESTS = {feature.name: feature.request for feature in FEATURES if feature.request is not None}
"""Requests of clients, by the name of the feature."""
FEATURE_OF_KIND = {kind: feature.name for feature in FEATURES for kind in (feature.kinds or (feature.name,))} | {
    feature.around: feature.name for feature in FEATURES if feature.around is not None
}
"""The feature that a part of a program uses, by the kind of the part."""


def impossible_pairs() -> dict[frozenset[str], str]:
    """Pairs of features that cannot meet, each with the reason."""
    return {
        frozenset({feature.name, other}): reason for feature in FEATURES for other, reason in feature.never_with.items()
    }
