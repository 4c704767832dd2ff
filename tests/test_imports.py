"""Packages import downward only, and modules in no circle; imports inside of functions count, those for type checkers
do not.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = ("errors", "numerics", "layout", "ptx", "vgpu", "run", "lang", "ops", "interop", "explain", "cli")
# Methods of the language that hand over to modules built on their classes; this list only shrinks.
KNOWN = [
    {"lang.metadata", "lang.scaled", "lang.scales", "lang.shared", "lang.tcgen05", "lang.tensor_memory"}
    | {"lang.tensors", "lang.tma", "lang.wgmma"},
]


def modules():
    found = {}
    for file in sorted((ROOT / "smalti").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file, known):
    """(module, line) of what it imports when it runs."""

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((name.name, child.lineno) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                for name in child.names:
                    inner = f"{child.module}.{name.name}"
                    yield inner if inner in known else child.module, child.lineno
            yield from walk(child)

    return [(name, line) for name, line in walk(ast.parse(file.read_text(encoding="utf-8"))) if name in known]


def circles(graph):
    """Sets of modules that reach each other, largest first."""
    reach = {}
    for start in graph:
        seen, open_ = set(), [start]
        while open_:
            for name in graph[open_.pop()] - seen:
                seen.add(name)
                open_.append(name)
        reach[start] = seen
    found = {frozenset({a, *(b for b in reach[a] if a in reach[b])}) for a in graph if a in reach[a]}
    return sorted(map(set, found), key=len, reverse=True)


def test_no_circles():
    known = modules()
    graph = {name: {other for other, _ in imports(file, known)} for name, file in known.items()}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert sum(map(len, graph.values())) > 500
    assert [{name.removeprefix("smalti.") for name in circle} for circle in circles(graph)] == KNOWN


def test_packages_import_downward():
    known = modules()
    wrong = []
    for name, file in known.items():
        package = name.split(".")[1] if "." in name else ""
        for other, line in imports(file, known) if package in ORDER else []:
            below = other.split(".")[1] if "." in other else ""
            if below in ORDER and ORDER.index(below) > ORDER.index(package):
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {other}")
    assert wrong == []
