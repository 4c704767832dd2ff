"""Dominators of a control-flow graph. Knows nothing of what its nodes are."""

from __future__ import annotations

from collections.abc import Sequence


def immediate_dominators(entry: int, successors: Sequence[Sequence[int]]) -> list[int]:
    """The immediate dominator of each node: `entry` for itself, -1 for a node that is not reached.

    With the edges turned round and the exit as the entry, these are the post-dominators. Source: Cooper, Harvey,
    Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
    """
    order: list[int] = []  # postorder
    seen = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        node, rest = stack[-1]
        after = next((s for s in rest if s not in seen), None)
        if after is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(after)
            stack.append((after, iter(successors[after])))
    rank = {node: n for n, node in enumerate(order)}
    before: list[list[int]] = [[] for _ in successors]
    for node in order:
        for after in successors[node]:
            before[after].append(node)
    dominator = [-1] * len(successors)
    dominator[entry] = entry
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            made = -1
            for b in before[node]:
                if dominator[b] >= 0:
                    made = b if made < 0 else _meet(made, b, dominator, rank)
            if made != dominator[node]:
                dominator[node], changed = made, True
    return dominator


def _meet(a: int, b: int, dominator: list[int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = dominator[a]
        while rank[b] < rank[a]:
            b = dominator[b]
    return a
