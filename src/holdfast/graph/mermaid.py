"""Mermaid flowcharts of graphs, optionally coloured by the states of a run's nodes."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.graph.shape import Shape

_COLOURS = {
    "ok": "fill:#d5f5e3,stroke:#1e8449,color:#145a32",
    "error": "fill:#fadbd8,stroke:#b03a2e,color:#78281f",
    "skipped": "fill:#eaeded,stroke:#95a5a6,color:#7b7d7d,stroke-dasharray:4",
    "running": "fill:#d6eaf8,stroke:#2874a6,color:#1b4f72",
    "pending": "fill:#ffffff,stroke:#aab7b8,color:#566573",
}


def mermaid(shape: Shape, states: Mapping[str, str] | None = None) -> str:
    """Render a flowchart.

    ``states``: ok, error, skipped or running for each node; a node that is not listed is pending. None: no colours.
    """
    lines = ["flowchart TD"]
    for n, node in enumerate(shape.nodes, 1):
        left, right = ("[[", "]]") if node.map else ("([", "])") if node.run else ("[", "]")
        lines.append(f'    n{n}{left}"{_label(node.name)}"{right}')
    for n, node in enumerate(shape.nodes, 1):
        lines += [f"    n{shape.number[parent]} {'==>' if parent == node.map else '-->'} n{n}" for parent in node.after]
    if states is not None:
        lines += _colours(shape, states)
    return "\n".join(lines) + "\n"


def _label(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _colours(shape: Shape, states: Mapping[str, str]) -> list[str]:
    by_state: dict[str, list[str]] = {}
    for n, node in enumerate(shape.nodes, 1):
        by_state.setdefault(states.get(node.name, "pending"), []).append(f"n{n}")
    lines = [f"    classDef {state} {_COLOURS[state]}" for state in by_state]
    return lines + [f"    class {','.join(nodes)} {state}" for state, nodes in by_state.items()]
