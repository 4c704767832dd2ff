"""Who can lead to whom in a package: names resolved across files, registries, entry points, shortest paths.

Built from file summaries by static analysis only; every edge says what kind of evidence it is.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

COST = {"call": 1.0, "nested": 0.5, "mention": 1.5, "registered": 1.0, "created": 1.5, "class": 2.0, "name": 5.0}
MOST_BY_NAME = 6  # methods of one name beyond which an unknown receiver leads nowhere
WRAPPERS = ("functools.partial", "functools.wraps", "functools.lru_cache", "functools.cache")  # register nothing
LABELS = 3  # entry points kept for each function
_DUNDERS = re.compile(r"__\w+__\Z")


@dataclass
class Graph:
    """Nodes are `module:qualified name`, or `op:name` for operations registered from outside the package."""

    modules: dict[str, dict[str, Any]]
    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    classes: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[str, dict[str, str]] = field(default_factory=dict)  # from -> to -> kind
    entries: dict[str, str] = field(default_factory=dict)  # node -> public name
    callers: dict[str, list[str]] = field(default_factory=dict)  # function -> functions with a call to it
    views: dict[str, Any] = field(default_factory=dict)  # readings of functions, made on demand
    labels: dict[str, list[tuple[float, str, str]]] = field(default_factory=dict)  # node -> (cost, entry, from)

    def __post_init__(self) -> None:
        self._by_name: dict[str, list[str]] = {}
        self._subclasses: dict[str, list[str]] = {}
        self._ops: set[str] = set()
        for name, module in self.modules.items():
            for function in module["functions"]:
                node = f"{name}:{function['name']}"
                self.functions[node] = function
                if function["class"]:
                    self._by_name.setdefault(function["name"].rsplit(".", 1)[-1], []).append(node)
            for qualified, made in module["classes"].items():
                self.classes[f"{name}:{qualified}"] = made
        for node, made in self.classes.items():
            for base in self._bases(node, made):
                self._subclasses.setdefault(base, []).append(node)
        self._register()
        self._connect()
        self._publish()
        self._search()
        for start, targets in self.edges.items():
            for end, kind in targets.items():
                if kind == "call" and start in self.functions and end in self.functions:
                    self.callers.setdefault(end, []).append(start)

    # --- names ---------------------------------------------------------------------------------------------

    def resolve(self, module: str, name: str, depth: int = 8) -> str | None:
        """Node of a dotted name seen in `module`; None for what the package does not hold."""
        if depth == 0 or module not in self.modules:
            return None
        here = self.modules[module]
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            node = f"{module}:{'.'.join(parts[:cut])}"
            if node in self.functions or node in self.classes:
                return self._member(node, parts[cut:])
        if parts[0] in here["imports"]:
            return self.resolve_full(".".join([here["imports"][parts[0]], *parts[1:]]), depth - 1)
        if parts[0] in here["objects"]:
            return f"{module}:{parts[0]}"
        for alias, target in here["imports"].items():
            if alias.startswith("*") and target != module and (found := self.resolve(target, name, depth - 1)):
                return found
        return None

    def resolve_full(self, name: str, depth: int = 8) -> str | None:
        """Node of a fully dotted name."""
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            module = ".".join(parts[:cut])
            if module in self.modules:
                return self.resolve(module, ".".join(parts[cut:]), depth) if parts[cut:] else None
        return None

    def _member(self, node: str, rest: list[str]) -> str:
        if rest and node in self.classes:
            return self.method(node, rest[0]) or node
        return node

    def method(self, node: str, name: str, depth: int = 8) -> str | None:
        """The method `name` of a class, its own or inherited."""
        module, _, qualified = node.partition(":")
        found = f"{module}:{qualified}.{name}"
        if found in self.functions:
            return found
        if depth:
            for base in self._bases(node, self.classes[node]):
                if inherited := self.method(base, name, depth - 1):
                    return inherited
        return None

    def _bases(self, node: str, made: dict[str, Any]) -> list[str]:
        module = node.partition(":")[0]
        found = [self.resolve(module, base) for base in made["bases"] if base]
        return [base for base in found if base in self.classes and base != node]

    # --- edges ---------------------------------------------------------------------------------------------

    def _edge(self, start: str, end: str, kind: str) -> None:
        known = self.edges.setdefault(start, {})
        if end not in known or COST[kind] < COST[known[end]]:
            known[end] = kind

    def _register(self) -> None:
        """Functions reached through what they are registered under: primitives, operations, tables."""
        for node, function in self.functions.items():
            module = node.partition(":")[0]
            for names in function["registered"]:
                for name in names:
                    for key in self._keys(module, name):
                        if key != node:
                            self._edge(key, node, "registered")
            for group in function["groups"]:
                found = {name: self.resolve(module, name) for name in group}
                targets = {n for n in found.values() if n in self.functions or n in self.classes}
                for name in group:
                    for key in self._keys(module, name):
                        for target in targets - {key}:
                            self._edge(key, target, "registered")

    def _keys(self, module: str, name: str) -> list[str]:
        node = self.resolve(module, name)
        if node is not None:
            home, _, own = node.partition(":")
            wrapper = self.modules[home]["objects"].get(own) in WRAPPERS
            return [] if node in self.functions or node in self.classes or wrapper else [node]
        last = name.rsplit(".", 1)[-1]
        if re.fullmatch(r"[A-Z]\w*Op", last):
            snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last[:-2]).lower()
            self._ops.add(f"op:{snake.replace('_', '')}")
            return [f"op:{snake.replace('_', '')}"]
        return []

    def _connect(self) -> None:
        for node, function in self.functions.items():
            module, _, qualified = node.partition(":")
            called = {call["to"] for call in function["calls"]}
            for name in function["refs"]:
                self._reference(node, module, qualified, function, name, name in called)
        for node in self.classes:
            module, _, qualified = node.partition(":")
            for special in ("__init__", "__post_init__", "__new__"):
                if found := self.method(node, special):
                    self._edge(node, found, "created")
            for method in self.classes[node]["methods"]:
                target = f"{module}:{qualified}.{method}"
                if _DUNDERS.match(method) and target in self.functions:
                    self._edge(node, target, "class")
                for sub in self._subclasses.get(node, ()):
                    other = f"{sub}.{method}"
                    if other in self.functions:
                        self._edge(target, other, "class")

    def _reference(
        self, node: str, module: str, qualified: str, function: dict[str, Any], name: str, called: bool
    ) -> None:
        if name.startswith("<local>"):
            self._edge(node, f"{module}:{name[7:]}", "nested")
            return
        root, _, rest = name.partition(".")
        if root in ("self", "cls", "super") and rest:
            owner = self._owner(module, function, qualified)
            method = rest.split(".")[0]
            if owner and (found := self.method(owner, method)):
                self._edge(node, found, "call")
                return
            self._by(node, rest.rsplit(".", 1)[-1])
            return
        if (root and root not in function["definitions"]) or "." not in name:
            found = self._inner(module, qualified, name) or self.resolve(module, name)
            if found is not None:
                if found != node:
                    self._edge(node, found, "call" if called else "mention")
                return
        last = name.rsplit(".", 1)[-1]
        op = f"op:{last.replace('_', '').removesuffix('Op').lower()}"
        if op in self._ops:
            self._edge(node, op, "call")
        elif "." in name and not self._foreign(module, root):
            self._by(node, last)

    def _foreign(self, module: str, root: str) -> bool:
        """Whether a name stands for something imported from another package: its members are not this package's."""
        target = self.modules[module]["imports"].get(root, "")
        return bool(target) and target.split(".")[0] != module.split(".")[0]

    def _by(self, node: str, method: str) -> None:
        known = self._by_name.get(method, ())
        if len(known) <= MOST_BY_NAME and not _DUNDERS.match(method):
            for target in known:
                self._edge(node, target, "name")

    def _inner(self, module: str, qualified: str, name: str) -> str | None:
        parts = qualified.split(".")
        for cut in range(len(parts), 0, -1):
            found = f"{module}:{'.'.join(parts[:cut])}.{name}"
            if found in self.functions and not self.functions[found]["class"]:
                return found
        return None

    def _owner(self, module: str, function: dict[str, Any], qualified: str) -> str | None:
        if function["class"]:
            return f"{module}:{function['class']}"
        parts = qualified.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            node = f"{module}:{'.'.join(parts[:cut])}"
            if node in self.classes:
                return node
        return None

    # --- entry points and paths ----------------------------------------------------------------------------

    def _publish(self) -> None:
        for name, module in self.modules.items():
            if any(part.startswith("_") for part in name.split(".")):
                continue
            own = {f["name"] for f in module["functions"] if "." not in f["name"]} | set(module["classes"])
            listed = module["exported"]
            for one in own:
                if not one.startswith(("_", "<")) and "." not in one:
                    self._entry(f"{name}:{one}", f"{name}.{one}")
            facade = len(own) <= 3 or listed is not None or module.get("package")
            for alias, target in module["imports"].items() if facade else ():
                shown = not alias.startswith(("_", "*")) and (listed is None or alias in listed or len(own) <= 3)
                if shown and (found := self.resolve_full(target)) is not None:
                    self._entry(found, f"{name}.{alias}")

    def _entry(self, node: str, public: str) -> None:
        if node in self.classes:
            module, _, qualified = node.partition(":")
            self._name_entry(node, public)
            for method in self.classes[node]["methods"]:
                if not method.startswith("_") or _DUNDERS.match(method):
                    target = f"{module}:{qualified}.{method}"
                    if target in self.functions:
                        self._name_entry(target, f"{public}.{method}")
        elif node in self.functions:
            self._name_entry(node, public)

    def _name_entry(self, node: str, public: str) -> None:
        known = self.entries.get(node)
        if known is None or (public.count("."), len(public)) < (known.count("."), len(known)):
            self.entries[node] = public

    def _search(self) -> None:
        queue = [(0.0, node, node, "") for node in sorted(self.entries)]
        heapq.heapify(queue)
        while queue:
            cost, node, entry, before = heapq.heappop(queue)
            known = self.labels.setdefault(node, [])
            if len(known) >= LABELS or any(entry == e for _, e, _ in known):
                continue
            known.append((cost, entry, before))
            for target, kind in self.edges.get(node, {}).items():
                if len(self.labels.get(target, ())) < LABELS:
                    heapq.heappush(queue, (cost + COST[kind], target, entry, node))

    def path(self, node: str, entry: str) -> list[tuple[str, str]]:
        """(node, kind of the edge that leads to it) from `entry` to `node`, both included."""
        steps: list[tuple[str, str]] = []
        current = node
        for _ in range(60):
            before = next((b for _, e, b in self.labels.get(current, ()) if e == entry), None)
            if not before:
                steps.append((current, ""))
                break
            steps.append((current, self.edges[before][current]))
            current = before
        return steps[::-1]

    @cached_property
    def before(self) -> dict[str, list[str]]:
        """Nodes with an edge to each node, sorted."""
        found: dict[str, list[str]] = {}
        for start in sorted(self.edges):
            for end in self.edges[start]:
                found.setdefault(end, []).append(start)
        return found

    def another_path(self, node: str, entry: str, blocked: set[str]) -> list[tuple[str, str]] | None:
        """A path from `entry` to `node` whose last step starts at none of `blocked`; None where there is none."""
        last = [start for start in self.before.get(node, ()) if start not in blocked]
        known = []
        for start in last:
            for cost, one, _ in self.labels.get(start, ()):
                path = self.path(start, entry) if one == entry else []
                if path and all(step != node for step, _ in path):
                    known.append((cost + COST[self.edges[start][node]], [*path, (node, self.edges[start][node])]))
        if known:
            return min(known)[1]
        after = dict.fromkeys(last, node)  # searched backwards, by number of steps
        queue = deque(last)
        while queue:
            current = queue.popleft()
            if current == entry:
                steps = [(entry, "")]
                while current != node:
                    current, before = after[current], current
                    steps.append((current, self.edges[before][current]))
                return steps
            for start in self.before.get(current, ()):
                if start not in after and start != node:
                    after[start] = current
                    queue.append(start)
        return None
