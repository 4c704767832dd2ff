"""Site records from a package's summaries: wordings, guards in tiers, entry points, refutations, ids.

Pure functions of the graph; reads and writes no files.
"""

from __future__ import annotations

import ast
import hashlib
from typing import Any
from zlib import crc32

from smalti.explain import families
from smalti.explain.index import conditions as logic
from smalti.explain.index.conditions import Condition, View, contradiction
from smalti.explain.index.graph import Graph
from smalti.explain.index.trees import key, names, parse, rebuilt, show, tidy
from smalti.explain.template import chunks, skeleton

MOST_STEPS = 4  # calls followed back from the raise for tier 3
LONGEST = 600
ALWAYS = "always, once this line is reached"


def identity(package: str, function: str, kind: str, template: str, ordinal: int) -> str:
    """Stable id of a raise: independent of lines, files of other functions and hole names."""
    last = kind.rsplit(".", 1)[-1]
    key = "\0".join([package, function, last, skeleton(template), str(ordinal)])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def kept(name: str, only: tuple[str, ...]) -> bool:
    """Whether a module is one of those to make records of (all where `only` is empty)."""
    return not only or any(name == p or name.startswith(p + ".") for p in only)


def records(graph: Graph, package: str, paths: dict[str, str], names: list[str]) -> list[dict[str, Any]]:
    """A record for each raise and assert of the named modules."""
    made = []
    for name in names:
        seen: dict[tuple[str, ...], int] = {}
        for function in graph.modules[name]["functions"]:
            view = View(function)
            for site in function["sites"]:
                wordings, kind, status = _worded(graph, name, site)
                display = wordings[0] if wordings else ""
                guard = tiers(view, site)
                anchor = display if site["kind"] == "raise" else guard["1"] or display
                key = (name, function["name"], kind, skeleton(anchor))
                seen[key] = seen.get(key, 0) + 1
                if guard["kind"] == "assert" and guard["1"] == "not False":
                    guard = {**guard, "1": ALWAYS}
                node = f"{name}:{function['name']}"
                record = {
                    "id": identity(package, node, kind, anchor, seen[key]),
                    "kind": site["kind"],
                    "type": kind.rsplit(".", 1)[-1] if kind else "",
                    "family": families.classify(display, kind, site["kind"]),
                    "module": name,
                    "function": function["name"],
                    "path": paths[name],
                    "line": site["line"],
                    "message": display,
                    "status": status,
                    "wordings": wordings,
                    "guard": guard,
                    "function_line": function["line"],
                }
                record["entries"] = _entries(graph, node, view, site, record)
                made.append(record)
    return made


def _view(graph: Graph, node: str) -> View:
    view = graph.views.get(node)
    if not isinstance(view, View):
        view = graph.views[node] = View(graph.functions[node])
    return view


def _worded(graph: Graph, module: str, site: dict[str, Any]) -> tuple[list[str], str, str]:
    """Wordings of a site, those that its exception class makes included; the type; how they were found."""
    wordings, kind, status = list(site["wordings"]), site["type"], site["status"]
    node = graph.resolve(module, kind) if kind and site["kind"] == "raise" else None
    for _ in range(6):
        if node not in graph.classes:
            break
        own = graph.classes[node]["init"]
        if own is not None:
            filled = [_filled(w, own["params"], site["args"]) for w in own["wordings"]]
            if filled and (len(chunks(filled[0])) > 1 or chunks(filled[0])[0][0]):
                status = "class" if status in ("none", "computed", "value") else status
                return list(dict.fromkeys(filled)), kind, status
            break
        bases = [graph.resolve(node.partition(":")[0], base) for base in graph.classes[node]["bases"] if base]
        node = next((b for b in bases if b in graph.classes), None)
    return wordings, kind, status


def _filled(template: str, params: list[str], args: list[list[str]]) -> str:
    values = {name: args[i][0] for i, name in enumerate(params) if i < len(args) and args[i]}
    text = ""
    for literal, hole in chunks(template):
        text += literal.replace("{", "{{").replace("}", "}}")
        if hole is not None:
            text += values.get(hole, "{" + hole + "}")
    return text


# --- guards -----------------------------------------------------------------------------------------------


def tiers(view: View, site: dict[str, Any]) -> dict[str, Any]:
    """Tiers 1 and 2: the innermost test, and every condition of the function on the way to it."""
    found = view.conditions(site)
    stated = [c.text + (" (as its names were then)" if c.stale else "") for c in found]
    inner = [i for i, (_, held) in enumerate(site["path"])]
    if not inner:
        return {"1": ALWAYS, "2": [], "kind": "always"}
    last = found[-1]
    return {"1": last.text[:LONGEST], "2": [s[:LONGEST] for s in stated], "kind": last.kind}


# --- reachability -----------------------------------------------------------------------------------------


def _entries(graph: Graph, node: str, view: View, site: dict[str, Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    own = view.conditions(site)
    inside = blocked = None
    if site["kind"] == "raise":
        if view.promising(own):
            inside = _refuted(view, own, site["path"], _never(graph, node.partition(":")[0]))
        blocked = {} if inside else _blocked(graph, node, view, own, site)
    found = []
    for _, entry, _ in graph.labels.get(node, ()):
        path = graph.path(node, entry)
        one: dict[str, Any] = {"entry": graph.entries[entry], "verdict": "reached", "reason": inside or ""}
        if inside:
            one["verdict"] = "refuted"
        elif blocked and len(path) > 1 and path[-2][0] in blocked:
            other = graph.another_path(node, entry, set(blocked))
            if other is None:
                one.update(verdict="refuted", reason="; ".join(dict.fromkeys(blocked.values())))
            else:
                path = other
        one["path"] = [{"node": n.replace(":", "."), "by": kind} for n, kind in path]
        if one["verdict"] == "reached":
            _rewrite(graph, path, view, own, site, one)
        found.append(one)
    if not found and inside:
        found.append({"entry": "", "path": [], "verdict": "refuted", "reason": inside})
    first = next((e for e in found if e.get("guard")), None)
    if first is not None:
        record["guard"]["3"] = first["guard"]
        record["guard"]["3 of"] = first["entry"]
    return found


def _blocked(graph: Graph, node: str, view: View, own: list[Condition], site: dict[str, Any]) -> dict[str, str]:
    """Callers none of whose calls can make the conditions hold, with the reason."""
    found: dict[str, str] = {}
    own_name = node.rsplit(".", 1)[-1].rsplit(":", 1)[-1]
    if any(call["to"].rsplit(".", 1)[-1] == own_name for call in view.function["calls"]):
        return found  # it may call itself with other values
    tests = [c.tree for c in own if c.tree is not None][-logic.TRIED :]
    used = {name for tree in tests for name in names(tree)} & set(view.params)
    if not used:
        return found
    for caller in graph.callers.get(node, ()):
        outer = _view(graph, caller)
        never = _never(graph, caller.partition(":")[0])
        reasons = []
        for call in _calls(graph, caller, node):
            bound = _bound(graph.functions[node], call, outer)
            if not any(outer.deciding(bound[name]) for name in used & set(bound)):
                break
            moved = [_moved(c, bound, view, site["path"]) for c in own]
            both = [*outer.conditions({"path": call["path"]}), *moved]
            reasons.append(_refuted(outer, both, call["path"], never))
            if reasons[-1] is None:
                break
        else:
            if reasons:
                texts = "; ".join(dict.fromkeys(r for r in reasons if r))
                found[caller] = (
                    f"every call in {caller.partition(':')[2]} passes values for which it cannot hold: {texts}"
                )
    return found


def _refuted(view: View, found: list[Condition], path: list[Any], never: logic.Never) -> str | None:
    current = found
    for _ in range(4):
        if (reason := contradiction(current, never)) is not None:
            return reason
        start = max(0, len(current) - logic.TRIED)
        grown = current[:start] + [_put(c, view, path) for c in current[start:]]
        if all(a.tree is b.tree for a, b in zip(grown, current, strict=True)):
            return None
        current = grown
    return None


def _put(condition: Condition, view: View, path: list[Any]) -> Condition:
    tree = view.expand(condition.tree, path) if condition.tree is not None else None
    if tree is condition.tree or tree is None or len(key(tree)) > 2 * LONGEST:
        return condition
    return Condition(condition.kind, condition.text, tree, condition.stale)


def _full(tree: ast.expr, view: View, path: list[Any]) -> ast.expr | None:
    """All local definitions put in; None where a local stays that has no expression, or it grows too long."""
    for _ in range(logic.DEEPEST):
        grown = view.expand(tree, path)
        if grown is tree:
            break
        if len(key(grown)) > LONGEST:
            return None
        tree = grown
    open_names = [name for name in names(tree) if "·" in name]
    loops = {c[1].split(" in ")[0] for c in view.function["conditions"] if c[0] == "for"}
    bound = {name.strip(" ()") for text in loops for name in text.split(",")}
    if any(name.partition("·")[0] not in bound for name in open_names):
        return None
    return tree


def _rewrite(
    graph: Graph, path: list[tuple[str, str]], view: View, own: list[Condition], site: dict[str, Any], one: Any
) -> None:
    """Tier 3 of one entry: the innermost condition in the entry's parameters."""
    inner = [c for c in own if c.kind not in ("for", "while")]
    if not inner:
        if len(path) == 1:
            one["guard"] = "always"
        return
    if inner[-1].tree is None:
        return
    trees = [tree for tree in [_full(inner[-1].tree, view, site["path"])] if tree is not None]
    steps = path[::-1]
    place = 0
    while place + 1 < len(steps) and trees:
        (callee, kind), (caller, _) = steps[place], steps[place + 1]
        place += 1
        if callee not in graph.functions:
            return
        function = graph.functions[callee]
        if kind == "registered" and caller not in graph.functions and place + 1 < len(steps):
            caller, shared = steps[place + 1][0], caller  # what registers it is bound by the function before
            place += 1
            calls = _binds(graph, caller, shared)
            if function["params"] and function["params"][0][0].startswith("ctx"):
                function = {**function, "params": function["params"][1:]}
        elif caller in graph.functions:
            calls = _calls(graph, caller, callee)
        else:
            return
        outer = _view(graph, caller) if caller in graph.functions else None
        if outer is None or not (calls or kind == "nested"):
            return
        unknown = {p[0] for p in function["params"]}
        if kind == "nested":
            unknown |= set(outer.definitions) | set(outer.params)
        moved = []
        for call in calls[:3] or [_NO_CALL]:
            bound = _bound(function, call, outer)
            if kind == "nested":
                bound = {**_outer_names(outer, trees, function), **bound}
            for tree in trees:
                there = _replace(tree, bound, unknown)
                full = _full(there, outer, call["path"]) if there is not None else None
                if full is not None:
                    moved.append(full)
        complete = len(moved) == len(trees) * max(1, min(3, len(calls))) and len(calls) <= 3
        trees = list({key(tree): tree for tree in moved}.values()) if complete else []
    trees = [tidy(tree) for tree in trees]
    text = " or ".join(f"({_said(t)})" if len(trees) > 1 else _said(t) for t in trees)
    text = "always" if any(isinstance(t, ast.Constant) and t.value is True for t in trees) else text
    if trees and len(text) <= LONGEST:
        one["guard"] = text


def _said(tree: ast.expr) -> str:
    """A condition as text, that of a `case` too."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "matches":
        subject, pattern = tree.args
        if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
            return f"{show(subject)} matches {pattern.value}"
    return show(tree)


_NO_CALL: dict[str, Any] = {"args": [], "named": {}, "spread": [], "path": [], "order": 10**6}


def _binds(graph: Graph, caller: str, shared: str) -> list[dict[str, Any]]:
    """Calls `shared.bind(…)`: their arguments are those of the functions registered for `shared`."""
    module = caller.partition(":")[0]
    function = graph.functions.get(caller)
    if function is None:
        return []
    calls = [c for c in function["calls"] if c["to"].endswith(".bind")]
    return [c for c in calls if graph.resolve(module, c["to"].removesuffix(".bind")) == shared]


def _outer_names(outer: View, trees: list[ast.expr], function: dict[str, Any]) -> dict[str, ast.expr]:
    """Names that an inner function takes from the one around it, where they have one definition there."""
    own = {p[0] for p in function["params"]}
    found: dict[str, ast.expr] = {}
    for name in sorted({name for tree in trees for name in names(tree)} - own):
        made = outer.definitions.get(name, [])
        if not made and name in outer.params:
            found[name] = ast.Name(id=name, ctx=ast.Load())
        elif len(made) == 1 and made[0][1] and name not in outer.params:
            tree = outer._versioned(made[0][1], made[0][0], made[0][2])
            if tree is not None:
                found[name] = tree
    return found


def _calls(graph: Graph, caller: str, callee: str) -> list[dict[str, Any]]:
    module, _, qualified = caller.partition(":")
    function = graph.functions[caller]
    target = callee.partition(":")[2].rsplit(".", 1)[-1]
    named = [c for c in function["calls"] if c["to"].rsplit(".", 1)[-1] == target]
    return [c for c in named if _leads(graph, module, qualified, function, c["to"], callee)]


def _leads(graph: Graph, module: str, qualified: str, function: Any, name: str, callee: str) -> bool:
    if name.startswith(("self.", "cls.")):
        return bool(graph.functions[callee]["class"])
    found = graph._inner(module, qualified, name) or graph.resolve(module, name)
    return found == callee


def _bound(callee: dict[str, Any], call: dict[str, Any], outer: View) -> dict[str, ast.expr]:
    """Parameter -> expression of the caller, versioned at the call; parameters that stay unknown are left out."""
    params = list(callee["params"])
    places = [p[0] for p in params if p[1] == "place"]
    if callee["class"] and places[:1] in (["self"], ["cls"]):
        places = places[1:]
    texts: dict[str, str] = {}
    if all(s.startswith("**") for s in call["spread"]):
        texts.update(zip(places, call["args"], strict=False))
    texts.update(call["named"])
    bound = {
        name: tree
        for name, text in texts.items()
        if (tree := outer._versioned(text, call["order"], call["path"])) is not None
    }
    open_params = [p for p in params if p[0] not in bound and p[1] in ("place", "named") and p[0] not in texts]
    spread = [outer._versioned(text.lstrip("*"), call["order"], call["path"]) for text in call["spread"]]
    if not spread:
        for name, _, default in open_params:
            if default is not None and (tree := parse(default)) is not None:
                bound[name] = tree
    elif len(spread) == 1 and spread[0] is not None:
        whole = outer.expand(spread[0], call["path"])
        for name, _, _ in open_params:
            if (value := _keyword(whole, name)) is not None:
                bound[name] = value
    return bound


def _keyword(tree: ast.expr, name: str) -> ast.expr | None:
    """`tree[name]` where tree is `dict(name=…)`, a display, or a choice of such."""
    if isinstance(tree, ast.IfExp):
        body, other = _keyword(tree.body, name), _keyword(tree.orelse, name)
        return ast.IfExp(tree.test, body, other) if body is not None and other is not None else None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "dict":
        return next((k.value for k in tree.keywords if k.arg == name), None)
    if isinstance(tree, ast.Dict):
        for key, value in zip(tree.keys, tree.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                return value
    return None


def _replace(tree: ast.expr, bound: dict[str, ast.expr], unknown: set[str]) -> ast.expr | None:
    """The callee's expression in the caller's terms; None where one of the `unknown` names stays."""
    missing: list[str] = []

    def change(node: Any) -> Any:
        if not isinstance(node, ast.Name):
            return rebuilt(node, change)
        if node.id in bound:
            return bound[node.id]
        if "·" in node.id:  # the name of a loop of the callee
            return ast.Name(id=f"some_{node.id.partition('·')[0]}", ctx=ast.Load())
        if node.id in unknown:
            missing.append(node.id)
        return node

    changed: ast.expr = change(tree)
    return changed if not missing else None


def _moved(condition: Condition, bound: dict[str, ast.expr], view: View, path: list[Any]) -> Condition:
    """A callee's condition with arguments for parameters; names that stay the callee's own are set apart."""
    if condition.tree is None:
        return condition
    tree = condition.tree
    for _ in range(2):
        tree = view.expand(tree, path)

    def change(node: Any) -> Any:
        if not isinstance(node, ast.Name):
            return rebuilt(node, change)
        if node.id in bound:
            return bound[node.id]
        if "·" in node.id or node.id in view.params:
            return ast.Name(id=f"{node.id.partition('·')[0]}·x{crc32(node.id.encode())}", ctx=ast.Load())
        return node

    return Condition(condition.kind, condition.text, change(tree))


def _never(graph: Graph, module: str) -> logic.Never:
    """Values of functions that only return what another package makes are never instances of this package's."""

    def never(value: ast.expr, kinds: str) -> str | None:
        if not isinstance(value, ast.Call):
            return None
        target = graph.resolve(module, show(value.func))
        if target not in graph.functions:
            return None
        made = graph.functions[target]
        home = target.partition(":")[0]
        results = made["result"]
        last = kinds.rsplit(".", 1)[-1]
        if not results or not any(c.endswith(f":{last}") for c in graph.classes):
            return None
        for text in results:
            root = text.split("(")[0].split(".")[0].strip()
            source = graph.modules[home]["imports"].get(root, "")
            if not source or graph.resolve_full(source) is not None or source in graph.modules:
                return None
        return f"`{show(value.func)}` returns what {results[0].split('(')[0]} makes, never a {last}"

    return never
