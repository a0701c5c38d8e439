"""What a built graph holds, read from the graph itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from max.graph import Graph

_OPERATION = re.compile(r"^\s*(?:%\S+ = )?([a-z]+(?:\.[a-z0-9_]+)+)\b(.*)")
_GRAPH = re.compile(r"^\s*mo\.graph(?: \w+)* @([\w.]+)[<(]")
_CALL = re.compile(r"@([\w.]+)\(")
_SYMBOL = re.compile(r'symbol = "([^"]+)"')


@dataclass(frozen=True)
class GraphFacts:
    """Operations by name and how often a step executes them.

    A layer body that is compiled once and called for every layer counts once
    per call, so that graphs with and without such bodies compare.
    """

    operations: Mapping[str, int]
    custom_operations: Mapping[str, int]

    @property
    def matmuls(self) -> int:
        return self.operations.get("rmo.matmul", 0)


def read_graph(graph: Graph) -> GraphFacts:
    """Counts the operations of a traced graph and of the bodies it calls."""
    bodies = _bodies(str(graph.module.mlir_module))
    operations: Counter[str] = Counter()
    custom: Counter[str] = Counter()

    def count(body: list[str]) -> None:
        for line in body:
            found = _OPERATION.match(line)
            if found is None:
                continue
            name, rest = found.groups()
            operations[name] += 1
            if name == "mo.custom" and (symbol := _SYMBOL.search(rest)):
                custom[symbol.group(1)] += 1
            if name == "mo.call" and (callee := _CALL.search(rest)):
                count(bodies[callee.group(1)])

    count(bodies[graph.name])
    return GraphFacts(dict(operations), dict(custom))


def _bodies(module: str) -> dict[str, list[str]]:
    """The lines of every graph in a module's text, by the graph's name."""
    bodies: dict[str, list[str]] = {}
    current: list[str] = []
    for line in module.splitlines():
        if start := _GRAPH.match(line):
            current = bodies.setdefault(start.group(1), [])
        else:
            current.append(line)
    return bodies
