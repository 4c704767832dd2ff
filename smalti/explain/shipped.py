"""What comes with the package: own entries, known refusals of the tensor-core layer, faults of compiled code.

All of it is data (TOML); here it becomes pages.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from importlib import resources
from typing import Any

from smalti.errors.catalogue import Entry, codes, load
from smalti.explain import families
from smalti.explain.record import Page, Proof
from smalti.explain.template import skeleton

READ = "2026-11-30"  # when the refusals were read and checked
EMPTY = ("what the message says", "as stated", "internal", "type")  # guards that add nothing to the message
VERDICTS = {
    "HW": "The hardware forbids it",
    "SW": "Only this software refuses it; the hardware can",
    "LOOP": "One instruction cannot do it, several can",
    "FORM": "The hardware fixes a data layout that was not prepared",
    "ARG": "The arguments contradict each other; there is nothing to lift",
}


@functools.cache
def _toml(name: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((resources.files("smalti.explain") / name).read_text(encoding="utf-8"))


@functools.cache
def own_messages() -> tuple[tuple[str, str], ...]:
    """(code, template) of the own entries, without reading the rest of them."""
    found = []
    for code in codes():
        text = (resources.files("smalti.errors") / "entries" / f"{code}.toml").read_text(encoding="utf-8")
        line = re.search(r'^message = (".+")$', text, re.MULTILINE)  # a basic string of one line: JSON's, too
        found.append((code, str(json.loads(line[1])) if line else ""))
    return tuple(found)


def own_page(code: str) -> Page | None:
    """The page of one own code."""
    entry = load(code)
    return None if entry is None else _own(entry)


@functools.cache
def own_pages() -> tuple[Page, ...]:
    """A page for each entry of smalti.errors."""
    return tuple(_own(entry) for code in codes() if (entry := load(code)) is not None)


def _own(entry: Entry) -> Page:
    checked = "executed by Smalti's own tests"
    return Page(
        id=entry.code, origin="smalti", kind="own", type=entry.type, message=entry.message, title=entry.title,
        family=entry.family, meaning=entry.meaning, trigger=entry.trigger, situations=list(entry.situations),
        solutions=list(entry.solutions), failing=entry.failing, mended=entry.mended, guard={"1": entry.guard},
        related=[(code, other.title if (other := load(code)) else "") for code in entry.related],
        version=entry.introduced,
        proofs=[
            Proof("the failing example raises exactly this code", checked),
            Proof("the mended example runs", checked),
            Proof("meaning, situations, solutions", "hand-written"),
        ],
        status=f"retired in {entry.removed}" if entry.removed else "",
    )  # fmt: skip


@functools.cache
def fault_pages() -> tuple[tuple[Page, tuple[re.Pattern[str], ...]], ...]:
    """Faults of compiled code with the patterns that they are known by."""
    found = []
    for fault in _toml("faults.toml")["fault"]:
        page = Page(
            id=fault["id"], origin="faults of compiled code", kind="fault", type=fault["from"],
            message=fault["shows"], title=fault["title"], family=fault["family"], meaning=fault["meaning"],
            solutions=fault["solutions"], asynchronous=fault.get("asynchronous", False),
            in_smalti=fault.get("smalti", ""),
            proofs=[Proof("the whole page", "hand-written; no Python line raises this")],
            status="general" if fault.get("general") else "",
        )  # fmt: skip
        patterns = tuple(re.compile(p, re.IGNORECASE) for p in fault["match"])
        found.append((page, patterns))
    return tuple(found)


@functools.cache
def refusals(stem: str = "") -> tuple[dict[str, Any], ...]:
    """Known refusals of JAX's tensor-core layer: of the source file `stem`.py, or all."""
    folder = resources.files("smalti.explain") / "knowledge"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".toml") and f.name != "answers.toml")
    chosen = [name for name in names if stem in ("", name[:-5])]
    return tuple(row for name in chosen for row in _toml(f"knowledge/{name}")["refusal"])


def refusal_of(path: str, function: str, message: str) -> dict[str, Any] | None:
    """The known refusal that an indexed site is, by file and wording; of several with that wording, by function."""
    stem = path.rsplit("/", 1)[-1].removesuffix(".py")
    if "mosaic" not in path or not stem:
        return None
    asked = skeleton(message)
    rows = [row for row in refusals(stem) if path.endswith(row["file"]) and asked in map(skeleton, row["message"])]
    named = (row for row in rows if function in row["function"].replace(" ", "").split(","))
    return next(named, rows[0] if len(rows) == 1 else None)


def answers() -> dict[str, Any]:
    """What Smalti does where others refuse: {"kernel": name -> source, "answer": name -> how}."""
    return _toml("knowledge/answers.toml")


def in_smalti(row: dict[str, Any]) -> str:
    """What Smalti does instead of a refusal, or the code with which it refuses as well."""
    answer = answers()["answer"].get(row.get("answer", ""))
    if answer is None:
        if row["verdict"] == "ARG":
            return "Refused as well where the same contradiction can be written; the message names both values."
        return "No call of this version of Smalti is documented as lifting this refusal."
    text = str(answer["text"])
    if refused := answer.get("refused"):
        text += f" What is illegal is refused with {refused} (smalti explain {refused})."
    if see := answer.get("see"):
        file, _, function = see.partition(":")
        text += f" Executed example: {file}, {function}."
    return text


def smalti_example(name: str) -> str:
    """The program that shows an answer, or nothing."""
    answer = answers()["answer"].get(name, {})
    kernel = answers()["kernel"]
    if "example" not in answer:
        return ""
    return "\n\n".join([kernel["common"].strip(), kernel[answer["kernel"]].strip(), answer["example"].strip()]) + "\n"


def enrich(page: Page, row: dict[str, Any]) -> None:
    """Put hand-written knowledge on a page."""
    page.verdict = VERDICTS[row["verdict"]] + (f": {row['why']}" if row.get("why") else "")
    told = "" if row["guard"] in EMPTY else row["guard"]
    refused = f"Refused: {told}." if told else "Refused where the rule in the message does not hold."
    page.meaning = row.get("meaning") or f"{refused} {page.verdict}."
    page.trigger = told or page.trigger
    page.solutions = list(row.get("solutions", ())) or _general(row["verdict"])
    page.situations = list(row.get("situations", ()))
    page.in_smalti, page.smalti_example = in_smalti(row), smalti_example(row.get("answer", ""))
    page.failing, page.mended = row.get("failing", page.failing), row.get("mended", page.mended)
    evidence = row.get("evidence", "read in the source")
    page.proofs.append(Proof("meaning, verdict, solutions", f"hand-written, {evidence}", READ))
    if row.get("answer"):
        page.proofs.append(Proof("what Smalti does", "executed by Smalti's own tests", "with every change"))
    there = f"same refusal in another catalogue, there {row['alias_place']}" if row.get("aliases") else ""
    page.also += [(other, there) for other in row.get("aliases", ())]


def _general(verdict: str) -> list[str]:
    return {
        "HW": ["Change the call so that the condition below no longer holds: no library can do this."],
        "SW": [
            "Keep to what this library accepts: the condition below is what it tests.",
            "Or use another entry of the library, or one that emits the instruction directly.",
        ],
        "LOOP": ["Split the operand and issue one call for each part."],
        "FORM": ["Arrange the data in the form that the message wants, before the call."],
        "ARG": ["Make the arguments agree; compare the values of the message."],
    }[verdict]


@functools.cache
def known_messages() -> dict[str, tuple[str, dict[str, Any]]]:
    """Id -> (wording, refusal) of the known refusals, each wording once; the pages are made one by one."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for row in refusals():
        for message in row["message"]:
            identity = f"{row['file']}|{row['function']}|{row['type']}|{skeleton(message)}"
            key = "JMG" + hashlib.sha256(identity.encode()).hexdigest()[:9]
            found.setdefault(row.get("aliases", [key])[0], (message, row))
    return found


def short(text: str, most: int = 90) -> str:
    """The beginning of a text, with a sign that it goes on."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def known_page(identifier: str) -> Page:
    """The page of one known refusal, for when the package itself is not indexed."""
    message, row = known_messages()[identifier]
    page = Page(
        id=identifier, origin="known refusals of JAX Mosaic GPU", kind="known", type=row["type"], message=message,
        title=short(skeleton(message).replace("{}", "…")), path=f"jax/{row['file']}", function=row["function"],
        family=families.classify(message, row["type"]),
    )  # fmt: skip
    enrich(page, row)
    return page


def known_pages() -> tuple[Page, ...]:
    """A page for each wording of each known refusal."""
    return tuple(map(known_page, known_messages()))
