"""From a code, an id, a message or a traceback to pages, with the reason for each; ambiguity is shown, not guessed.

Reads shipped pages and open stores. The rules are versioned: a change of MATCHER is a change of answers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from smalti.explain import shipped
from smalti.explain.reading import LONGEST_MESSAGE, Frame, Raised, clean, exceptions, mentions, split_message
from smalti.explain.record import Answer, Match, Page, Proof
from smalti.explain.store import Store
from smalti.explain.template import Fit, fit, likeness, normal, skeleton, weight, words

MATCHER = 1
ENOUGH = 10  # literal letters and digits from which a full match of the text counts as strong
CLOSE = 0.45  # share of common words from which a page is offered as similar
BEGUN = 25  # characters from which a text that was cut off leads to those that begin so
MOST = 8
RELATED = 6
AROUND = 16  # source lines shown on each side of a raise
FAULT_TEXT = 200_000  # characters of a log that are searched for faults
PLACES = 40  # of one text
_CODE = re.compile(r"SML\d{4}")
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([A-Za-z]\w{0,60})[/\\.]")
_CALLED = re.compile(r"\b([A-Za-z_]\w{0,80})\s?\(")
_NAMED = re.compile(r"((?:[A-Za-z_]\w*\.){0,20}[A-Z]\w*): (.+)", re.DOTALL)
_CODED = re.compile(r"\s{0,20}(SML\d{4}):")
_ID = re.compile(r"(?:[0-9a-f]{16}|JMG[0-9a-f]{9}|FLT\d{4})\Z")


def find(question: Any, stores: Iterable[Store] = ()) -> Answer:
    """Pages for an exception, code, id, message or pasted traceback; `stores` are searched too.

    The first page is whole; the others lack the source around the raise and related pages.
    """
    stores = list(stores)
    answer = _exception(question, stores) if isinstance(question, BaseException) else _text(str(question), stores)
    for match in answer.matches[:1]:
        for store in stores:
            if match.page.origin == _origin(store):
                complete(match.page, store)
    return answer


def _text(question: str, stores: list[Store]) -> Answer:
    text = clean(question)
    asked = text.strip()
    if _CODE.fullmatch(asked.upper()):
        return _code(asked.upper())
    if _ID.match(asked):
        return _identifier(asked, stores)
    if not asked:
        return Answer("nothing")
    raised = exceptions(text)
    if raised:
        return _traceback(raised, stores, text)
    kind, message = split_message(asked)
    one = Raised(type=kind, message=message[:LONGEST_MESSAGE])
    quoted = [] if kind else mentions(asked)
    if quoted:
        return _traceback(quoted, stores, text)
    answer = Answer("message")
    if not kind and (named := _NAMED.match(asked[:LONGEST_MESSAGE])):  # a type whose name does not look like one
        answer.matches = [m for m in _one(Raised(named[1], named[2]), stores) if m.certainty != "similar"]
    answer.matches = answer.matches or _one(one, stores)
    if len(message) > LONGEST_MESSAGE and not answer.matches:
        answer.matches = _faults(Raised(message=text))
    if _wordless(one) and not answer.matches:
        answer.notes.append("The message has no words that could lead to a page; paste the whole traceback.")
    return _settled(answer)


def _origin(store: Store) -> str:
    return f"{store.package} {store.version}"


def page_of(record: dict[str, Any], store: Store) -> Page:
    """The page of an indexed site."""
    origin = _origin(store)
    title = shipped.short(skeleton(record["message"]).replace("{}", "…"))
    page = Page(
        id=record["id"], origin=origin, kind=record["kind"], type=record["type"], message=record["message"],
        title=title or f"{record['type']} in {record['function']}",
        family=record["family"], guard=record["guard"], module=record["module"], function=record["function"],
        path=record["path"], line=record["line"], version=store.version, commit=store.meta.get("commit", ""),
        entries=record["entries"], tests=record.get("tests", []), status=record["status"],
        also=store.aliases(record["id"]),
        executed=record.get("executed", []),
    )  # fmt: skip
    made = store.meta.get("made", "")
    if page.guard.get("1"):
        page.trigger = f"`{page.guard['1']}`"
    page.proofs.append(Proof("place, type, message, conditions", "static analysis of the source", made))
    if page.entries:
        page.proofs.append(Proof("entry points and paths", "static analysis; a path is not an execution", made))
    for test in page.tests:
        page.proofs.append(Proof(f"an upstream test expects it: {test['file']}:{test['line']}", "upstream test", made))
    for run in page.executed:
        how = f"executed ({run['level']})" if run.get("level") else "executed"
        page.proofs.append(Proof(f"`{run['trigger']}` raised it", how, run.get("when", "")))
    shown = max(page.executed, key=lambda run: (bool(run.get("mended")), bool(run.get("source"))), default={})
    page.failing, page.mended = shown.get("source", ""), shown.get("mended", "")
    row = shipped.refusal_of(record["path"], record["function"], record["message"])
    if row is not None:
        shipped.enrich(page, row)
    return page


def complete(page: Page, store: Store, lines: list[str] | None = None) -> Page:
    """The page of an indexed site with the source around its raise and with related pages."""
    lines = store.source(page.path) if lines is None else lines
    if page.line and page.line <= len(lines):
        first = max(1, page.line - AROUND)
        page.excerpt = list(enumerate(lines[first - 1 : page.line + AROUND], first))
    record = {name: getattr(page, name) for name in ("id", "path", "function", "family", "line")}
    near = {site: (message, 0.3) for site, message in store.neighbours(record, 12)}
    for site, message in store.wordings(words(skeleton(page.message)), 40):
        near.setdefault(site, (message, 0.0))
    text = skeleton(page.message)
    scored = sorted((-likeness(skeleton(m), text) - bonus, m, site) for site, (m, bonus) in near.items())
    best: dict[str, str] = {}
    for _, message, site in scored:
        if site != page.id and skeleton(message) != text:
            best.setdefault(skeleton(message), site)
    page.related = [(site, message.replace("{}", "…")) for message, site in list(best.items())[:RELATED]]
    return page


# --- questions --------------------------------------------------------------------------------------------


def _code(code: str) -> Answer:
    from smalti.errors import entry

    entry(code)  # refuses an unknown code, naming the nearest
    page = shipped.own_page(code)
    assert page is not None
    return Answer("code", [Match(page, "sure", ["the code itself"])])


def _identifier(identifier: str, stores: list[Store]) -> Answer:
    answer = Answer("id")
    for store in stores:
        if record := store.row(identifier):
            reason = record.get("asked_as", "the id itself")
            answer.matches.append(Match(page_of(record, store), "sure", [reason]))
    shipped_pages = [shipped.known_page(identifier)] if identifier in shipped.known_messages() else []
    for page in [*shipped_pages, *[page for page, _ in shipped.fault_pages() if page.id == identifier]]:
        found = indexed(page, stores) if page.kind == "known" else None
        reasons = [text for other, text in page.also if other == identifier] or ["the id itself"]
        if found is not None:
            reasons.append(f"in {found.origin} at line {found.line}")
        answer.matches.append(Match(found or page, "sure", reasons))
    return _settled(answer)


def indexed(page: Page, stores: list[Store]) -> Page | None:
    """The page of the indexed site that a known refusal is, with its source; None where no index has it."""
    for store in stores:
        for site, template in store.wordings(words(skeleton(page.message)), 60):
            record = store.row(site) if skeleton(template) == skeleton(page.message) else None
            if record is None or not record["path"].endswith(page.path):
                continue
            found = page_of(record, store)
            if any(other == page.id for other, _ in found.also) or record["function"] in page.function.split(", "):
                return complete(found, store)
    return None


def _exception(raised: BaseException, stores: list[Store]) -> Answer:
    import traceback

    chain: list[Raised] = []
    seen: set[int] = set()
    current: BaseException | None = raised
    while current is not None and id(current) not in seen and len(chain) < 20:
        seen.add(id(current))
        frames = [
            Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(current.__traceback__, limit=-200)
        ]
        code = getattr(current, "code", "")
        message = str(current) if not code else f"{code}: {getattr(current, 'message', current)}"
        notes = getattr(current, "__notes__", [])
        chain.append(Raised(type(current).__name__, "\n".join([message, *map(str, notes)]), frames))
        current = current.__cause__ or current.__context__
    return _traceback(chain[::-1], stores)


def _traceback(raised: list[Raised], stores: list[Store], text: str = "") -> Answer:
    answer = Answer("traceback")
    lost = []
    for one in raised:
        matches = _one(one, stores)
        answer.matches += matches
        if (one.type or one.message) and not any(m.certainty in ("sure", "likely") for m in matches):
            lost.append(f"{one.type}: {one.message}".strip(": ").split("\n")[0][:160])
    if text and lost and not any(m.page.kind == "fault" for m in answer.matches):  # in the log around the traceback
        answer.matches += [m for m in _faults(Raised(message=text[-FAULT_TEXT:])) if m not in answer.matches]
    package = next((hit[1] for one in raised for f in reversed(one.frames) if (hit := _PACKAGE.search(f.file))), "")
    known = {store.package for store in stores}
    if package and package not in known and all(m.certainty == "similar" for m in answer.matches):
        answer.notes.append(f"It was raised in {package}, which is not indexed: smalti errors index {package}")
    elif not answer.matches and all(map(_wordless, raised)):
        answer.notes.append(
            "The message has no words that could lead to a page, and no frame lies in an indexed package. "
            "Paste the full traceback (JAX_TRACEBACK_FILTERING=off keeps JAX's own frames), or index the package."
        )
    elif lost and len(raised) > 1 and any(m.certainty != "similar" for m in answer.matches):
        answer.notes += [f"No page is certain for: {line}" for line in dict.fromkeys(lost[:3])]
    if len(raised) > 1:
        answer.notes.append(f"The text holds {len(raised)} exceptions; the innermost cause is tried first.")
    return _settled(answer)


def _settled(answer: Answer) -> Answer:
    """Best first, without repetition; ambiguous where the best is not alone."""
    best: dict[str, Match] = {}
    for match in answer.matches:
        known = best.get(match.page.id)
        if known is None or _rank(match) < _rank(known):
            best[match.page.id] = match
        elif known.page.origin != match.page.origin:
            known.page.also.append((match.page.id, f"{match.page.origin}: line {match.page.line}"))
    answer.matches = sorted(best.values(), key=_rank)
    top = [m for m in answer.matches if _rank(m) == _rank(answer.matches[0])]
    alone = {(m.page.module, m.page.function, m.page.message, m.asked) for m in top}
    answer.ambiguous = (len(alone) > 1 and len({m.asked for m in top}) < len(alone)) or any(m.places for m in top)
    if answer.matches and answer.matches[0].certainty != "similar":
        answer.matches = [m for m in answer.matches if m.certainty != "similar"]
    if any(m.page.asynchronous for m in answer.matches if m.certainty == "sure"):
        answer.notes.append(
            "This fault is reported late: the line at the end of the traceback is not to blame. "
            "It happened in some earlier kernel or copy on the same device."
        )
    answer.matches = answer.matches[:MOST]
    return answer


def _wordless(raised: Raised) -> bool:
    return not any(c.isalpha() for c in raised.message)


def _rank(match: Match) -> tuple[int, int]:
    """The very line first, then by certainty, then by how much of the text is not in holes."""
    line = any("very line" in r for r in match.reasons)
    rank = 0 if line else 1 + ("sure", "likely", "similar").index(match.certainty)
    return max(rank, 2) if match.carrier else rank, -match.strength


# --- one exception ----------------------------------------------------------------------------------------


def _one(raised: Raised, stores: list[Store]) -> list[Match]:
    asked = f"{raised.type}: {raised.message.splitlines()[0] if raised.message else ''}".strip(": ")[:300]
    text = raised.message
    if raised.type.endswith("KeyError") and len(text) > 2 and text[0] in "'\"" and text[-1] == text[0]:
        raised = replace(raised, message=text[1:-1])  # the one type that prints its message as Python would
    found = _coded(raised) or [m for store in stores for m in _site(raised, store)] or _own(raised)
    sure = any(m.certainty == "sure" for m in found)
    passed_on = [v for one in found for v in one.values.values() if len(v) > ENOUGH]
    faults = _faults(raised) if not sure or passed_on else []  # their patterns are costly to read
    if not sure:
        found += faults
    elif held := [m for m in faults if any(m.hit in value for value in passed_on)]:
        for match in found:  # a Python error that passes on what a compiler or driver said
            match.carrier = True
            match.reasons.append("it passes on a message of compiled code, explained first")
        found += held
    if not found:
        found += _known(raised)
    if not found:
        found += _begun(raised, stores) or _similar(raised, stores)
    for match in found:
        match.asked = asked
    return found


def _coded(raised: Raised) -> list[Match]:
    """The page of the code that the message begins with."""
    code = _CODED.match(raised.message)
    if code is None or (page := shipped.own_page(code[1])) is None:
        return []
    rest = raised.message[code.end() :].lstrip(": ")
    found = fit(page.message, rest) or fit(page.message, re.sub(r" \([^()]*:\d+\)$", "", rest))
    return [Match(page, "sure", ["the message names the code"], dict(found.values) if found else {})]


def _own(raised: Raised) -> list[Match]:
    """Own pages by their text, where it was quoted without its code."""
    found = []
    for name, message in shipped.own_messages():
        fitted = fit(message, raised.message) if weight(message) >= ENOUGH else None
        page = shipped.own_page(name) if fitted else None
        if fitted and page is not None and (not raised.type or raised.type.endswith(page.type)):
            found.append(Match(page, "likely", ["the text is the one of this code"], fitted.values))
    return found


def _faults(raised: Raised) -> list[Match]:
    """Faults of compiled code by their words; one that says that something failed comes after one that says what."""
    text = f"{raised.type}: {raised.message}"[-FAULT_TEXT:]
    found = []
    for page, patterns in shipped.fault_pages():
        for pattern in patterns:
            if hit := pattern.search(text):
                values = {k: v for k, v in hit.groupdict().items() if v}
                certainty = "likely" if page.status == "general" else "sure"
                reason = f"compiled code reports `{' '.join(hit[0].split())[:80]}`"
                found.append(Match(page, certainty, [reason], values, hit=hit[0]))
                break
    return sorted(found, key=lambda m: m.certainty != "sure")[:3]


def _known(raised: Raised) -> list[Match]:
    fits: dict[str, Match] = {}
    for identifier, (message, row) in shipped.known_messages().items():
        strength = weight(message)
        if strength < ENOUGH or not _same_type(raised.type, row["type"]):
            continue
        if fitted := fit(message, raised.message):
            note = "the text is that of a known refusal; index the package for source, conditions and paths"
            page = shipped.known_page(identifier)
            match = Match(page, "likely", [note], fitted.values, strength=strength)
            _join(fits, message, match)
    return list(fits.values())


def _begun(raised: Raised, stores: list[Store]) -> list[Match]:
    """Pages whose text begins with the whole message, which was cut off between words or has dots after it."""
    message = normal(raised.message)
    text = message.removesuffix("...").removesuffix("…").rstrip()
    if len(text) < BEGUN:
        return []

    def begins(template: str) -> bool:
        head = skeleton(template).split("{}", 1)[0]
        cut_word = text == message and re.match(r"\w\w", text[-1] + head[len(text) : len(text) + 1])
        return head.startswith(text) and not cut_word

    made: list[tuple[str, Callable[[], Page | None]]] = []
    for store in stores:
        for site, template in store.wordings(words(text[:4000])):
            made.append((template, functools.partial(_stored, site, store)))
    made += [(m, functools.partial(shipped.own_page, code)) for code, m in shipped.own_messages()]
    made += [(m, functools.partial(shipped.known_page, i)) for i, (m, _) in shipped.known_messages().items()]
    fits: dict[str, Match] = {}
    for template, make in made:
        page = make() if begins(template) else None
        if page is None or page.kind == "assert" or not _same_type(raised.type, page.type):
            continue
        _join(fits, template, Match(page, "likely", ["the text begins so"], strength=len(text)))
    return list(fits.values())


def _join(fits: dict[str, Match], text: str, match: Match) -> None:
    """Add a match, or its page to the places of the one that has the same text in the same package."""
    first = fits.setdefault(skeleton(text), match)
    if first is not match and first.page.origin == match.page.origin and len(first.places) < PLACES:
        first.places = [*(first.places or [first.page]), match.page]


def _same_type(asked: str, known: str) -> bool:
    """Whether they agree; a helper that builds the exception is indexed by its own name, which says nothing."""
    name = known.rsplit(".", 1)[-1]
    return not asked or not name[:1].isupper() or asked.rsplit(".", 1)[-1] == name


def _site(raised: Raised, store: Store) -> list[Match]:
    """Indexed sites by place and text: same line, same function, text alone."""
    texts: dict[str, tuple[str, Fit]] = {}
    for site, template in store.wordings(words(raised.message[:4000])):
        if site not in texts and (fitted := fit(template, raised.message)):
            texts[site] = (template, fitted)
    by_frame = _by_frame(raised, store, texts)
    if by_frame:
        return by_frame
    fits: dict[str, list[tuple[dict[str, Any], Fit, int]]] = {}
    for site, (template, fitted) in texts.items():
        record = store.row(site) if weight(template) >= 3 else None
        if record is not None and record["kind"] == "raise" and _same_type(raised.type, record["type"]):
            fits.setdefault(skeleton(template), []).append((record, fitted, weight(template)))
    found = []
    called = {name for frame in raised.frames for name in _CALLED.findall(frame.text)}
    for group in sorted(fits.values(), key=lambda g: (-g[0][2], not g[0][1].exact))[:MOST]:
        group.sort(key=lambda one: _nearest_first(one[0], called))
        (record, fitted, strength), count = group[0], len(group)
        how = "letter by letter" if fitted.exact else "but for case, spaces or a full stop"
        reasons = [f"the text fits, {how}" + (f", and the type {record['type']}" if raised.type else "")]
        places = [page_of(one, store) for one, _, _ in group[:PLACES]]
        certainty = "likely" if strength >= ENOUGH else "similar"
        match = Match(places[0], certainty, reasons, fitted.values, strength=strength)
        if count > 1:
            match.places = places
            if names := called & _entries(record):
                reasons.append(f"your code calls {', '.join(sorted(names))}, which reaches the first of its places")
            reasons.append(f"{store.package} {store.version} raises this text at {count} places")
        elif len(fits) == 1 and strength >= ENOUGH:
            match.certainty = "sure"
            reasons.append(f"no other raise in {store.package} {store.version} gives this text")
        found.append(match)
    return found


def _entries(record: dict[str, Any]) -> set[str]:
    """Last names of the entry points that reach a site."""
    return {e["entry"].rsplit(".", 1)[-1] for e in record["entries"] if e["verdict"] != "refuted" and e["entry"]}


def _nearest_first(record: dict[str, Any], called: set[str]) -> tuple[bool, bool, str, int]:
    """Order of the places of one text: reached from a call that the traceback prints, from any entry, then by place."""
    entries = _entries(record)
    return not called & entries, not entries, record["path"], record["line"]


def _by_frame(raised: Raised, store: Store, texts: dict[str, tuple[str, Fit]]) -> list[Match]:
    """The innermost frame that lies in the indexed package, then the ones outside it."""
    top = store.package.split(".")[0]
    inside = [f for f in raised.frames if f"/{top}/" in "/" + f.file.replace("\\", "/")]
    for frame in reversed(inside[-12:]):
        path = frame.file.replace("\\", "/")
        end = path[("/" + path).rindex(f"/{top}/") :].lstrip("/")
        records = store.at(end, function=frame.function or None) if frame.function else store.at(end, line=frame.line)
        records = [r for r in records if _same_type(raised.type, r["type"])]
        source = store.source(records[0]["path"]) if frame.text and records else []
        printed = _printed(frame, source, records)
        last = frame is raised.frames[-1]
        chosen = []
        for record in records:
            fitted = texts.get(record["id"])
            bare = not any(weight(w) for w in record["wordings"])
            on_line = frame.line != 0 and record["line"] == frame.line and (not printed or record["id"] in printed)
            if fitted is not None or (bare and (on_line or (last and not raised.message))):
                chosen.append((not on_line, fitted is None, -weight(fitted[0]) if fitted else 0, record, fitted))
        if not chosen and last and frame.line:
            open_text = ("computed", "value", "re-raised", "none")  # sites whose text says nothing of itself
            spoken = [r for r in records if r["status"] in open_text or not any(map(weight, r["wordings"]))]
            here = [r for r in spoken if r["line"] == frame.line and (not printed or r["id"] in printed)]
            chosen = [(not here, True, 0, r, None) for r in here or spoken]
        if chosen:
            line = frame.line + _shift(frame, raised.frames, source)
            chosen.sort(key=lambda c: (*c[:3], abs(c[3]["line"] - line)))  # equals: the nearest line first
            alike = [c for c in chosen if c[:3] == chosen[0][:3]]
            alike = [c for c in alike if c[3]["id"] in printed] or alike
            found = [_framed(c, frame, store, len(alike)) for c in alike[:PLACES]]
            if len({skeleton(c[3]["message"]) for c in alike}) > 1:
                return found[:MOST]
            if len(found) > 1:  # of the same text, nearest line first
                found[0].places = [match.page for match in found]
                found[0].reasons.append(f"it raises this text at {len(alike)} places")
            return found[:1]
    return []


def _printed(frame: Frame, source: list[str], records: list[dict[str, Any]]) -> set[str]:
    """Those of the sites whose source line is the one that the traceback prints."""
    text = normal(frame.text)
    return {r["id"] for r in records if text and r["line"] <= len(source) and normal(source[r["line"] - 1]) == text}


def _shift(frame: Frame, frames: list[Frame], source: list[str]) -> int:
    """By how many lines the file of a frame moved: from the nearest other frame there whose line is found again."""
    near = sorted((f for f in frames if f.file == frame.file and f.text), key=lambda f: abs(f.line - frame.line))
    for other in near[:8]:
        text = normal(other.text)
        found = [number for number, line in enumerate(source, 1) if normal(line) == text]
        if len(found) == 1 and other != frame:
            return found[0] - other.line
    return 0


def _framed(chosen: tuple[Any, ...], frame: Frame, store: Store, alike: int) -> Match:
    moved, _, _, record, fitted = chosen
    reasons = [f"the innermost frame inside {store.package} is {record['function']}"]
    if not moved:
        reasons.append(f"on the very line {record['path']}:{record['line']}")
    elif frame.line:
        reasons.append(f"the raise is at line {record['line']} in {store.version}, line {frame.line} in yours")
    if fitted is not None and weight(fitted[0]):
        reasons.append("the text fits")
    values = dict(fitted[1].values) if fitted is not None else {}
    return Match(page_of(record, store), "sure" if alike == 1 else "likely", reasons, values)


def _similar(raised: Raised, stores: list[Store]) -> list[Match]:
    """Pages with much the same words, for text from memory; never a certain answer."""
    asked = raised.message[:2000]
    if not words(asked):
        return []
    scored: list[tuple[float, Callable[[], Page | None]]] = []
    for code, message in shipped.own_messages():
        scored.append((likeness(skeleton(message), asked, True), functools.partial(shipped.own_page, code)))
    indexed: set[str] = set()
    for store in stores:
        seen: set[str] = set()
        for site, template in store.wordings(words(asked), 120):
            if site not in seen:
                seen.add(site)
                indexed.add(skeleton(template))
                scored.append((likeness(skeleton(template), asked, True), functools.partial(_stored, site, store)))
    for identifier, (message, _) in shipped.known_messages().items():
        if skeleton(message) not in indexed:
            scored.append((likeness(skeleton(message), asked, True), functools.partial(shipped.known_page, identifier)))
    best = sorted((one for one in scored if one[0] >= CLOSE), key=lambda one: -one[0])[: 2 * MOST]
    made = [(score, page) for score, make in best if (page := make()) is not None]
    return [Match(page, "similar", [f"{score:.0%} alike"], strength=round(100 * score)) for score, page in made[:MOST]]


def _stored(site: str, store: Store) -> Page | None:
    record = store.row(site)
    return page_of(record, store) if record is not None else None
