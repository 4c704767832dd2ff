"""Reads what a user pastes: tracebacks of Python, IPython, pytest and JAX, groups, logs, noise.

Gives the exceptions in the text with their frames. Knows nothing of any catalogue. Linear time, bounded input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

LARGEST = 8 << 20  # characters kept of a longer text: its head and its tail
MOST_LINES = 100_000  # likewise
LONGEST_LINE = 20_000
LONGEST_MESSAGE = 8_000
MOST_FRAMES = 2_000
MOST_EXCEPTIONS = 200


@dataclass(frozen=True)
class Frame:
    """One line of a stack: `line` is 0 where the text does not say it."""

    file: str
    line: int
    function: str
    text: str = field(default="", compare=False)  # the source line that is printed with it


@dataclass
class Raised:
    """One exception of the text, in printed order; `note` says how it relates to the one printed before."""

    type: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    note: str = ""  # "" | "caused by the one before" | "while handling the one before" | "in a group"


def decode(data: bytes) -> str:
    """Text of pasted bytes: UTF-8, or UTF-16 with its mark; anything else is replaced, not refused."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace")


_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|\x1b[@-_]")
_NOISE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")
_PREFIX = re.compile(  # of logs: ranks, actors, containers, glog, clocks
    r"^(?:\[rank\d{1,6}\]:\s?|\([\w .:-]{1,60} ?pid=\d{1,9}[^)\n]{0,40}\) ?"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]{1,200}:\d+\] ?"
    r"|(?:ERROR|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./:]{1,100}\] ?)?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]?\d{0,9}Z? ?|[\w.-]{1,60}\s{0,20}\| ?)"
)
_LINK = re.compile(r"\[([^\]\n]{1,400})\]\(https?://[^)\n]{1,1000}\)")


def clean(text: str) -> str:
    """The text without colour codes, control characters and log prefixes; very long texts lose their middle."""
    if len(text) > LARGEST:
        text = text[: LARGEST // 4] + "\n" + text[-(LARGEST - LARGEST // 4) :]
    text = _LINK.sub(r"\1", _ANSI.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    if "\\n  File " in text:  # copied out of a JSON string
        text = text.replace("\\n", "\n").replace('\\"', '"')
    every = text.split("\n")
    if len(every) > MOST_LINES:
        every = every[: MOST_LINES // 4] + every[-(MOST_LINES - MOST_LINES // 4) :]
    lines = [_NOISE.sub("", line[:LONGEST_LINE]) for line in every]
    for _ in range(2):  # a rank inside a clock
        prefixed = sum(1 for line in lines if _PREFIX.match(line))
        if prefixed < 2 or prefixed * 10 <= 7 * sum(1 for line in lines if line.strip()):
            break
        lines = [_PREFIX.sub("", line, count=1) for line in lines]
    return "\n".join(lines)


_HEADER = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\)")
_PY_FRAME = re.compile(r'^\s*File "([^"\n]{1,1000})", line (\d{1,9})(?:, in (.{1,400}))?\s*$')
_IPY_FRAME = re.compile(r"^File (\S[^\n]{0,1000}?):(\d{1,9})(?:, in ([\w.<>]{1,300}))?(?:\(.*)?$")
_CELL_FRAME = re.compile(r"^((?:Cell )?In(?:put In)? ?\[\d{1,9}\])(?:, line (\d{1,9}))?(?:, in (.{1,300}))?")
_OLD_IPY_FRAME = re.compile(
    r"^((?:[/~]|[A-Za-z]:\\|<ipython-input)[^\n]{0,1000}?|[\w./-]{1,500}\.py) in ([\w.<>]{1,300})(?:\((.*)\))?$"
)
_ARROW = re.compile(r"^-{1,8}> ?(\d{1,9}) (.{0,400})")
_MARK = re.compile(r"^>\s{1,80}(\S.{0,400})")
_IPY_TITLE = re.compile(r"^([A-Za-z_][\w.]{0,200})\s{2,}Traceback \(most recent call last\)")
_TEST_FRAME = re.compile(r"^(\S[^\n:]{0,500}?\.py|[A-Za-z]:\\[^\n:]{0,500}?\.py):(\d{1,9}): ?(.{0,300})$")
_TEST_ERROR = re.compile(r"^E {1,16}(.*)$")
_DEF = re.compile(r"^>?\s*(?:async )?def (\w{1,200})\(")
_RAISED = re.compile(r"^([A-Za-z_][\w]{0,120}(?:\.[A-Za-z_]\w{0,120}){0,20})(?:: ?(.*))?$")
_TYPELIKE = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group|Fault|Failed|Refusal)\Z")
_GROUP_BAR = re.compile(r"^\s*(?:\|(?: |$)|\+ )")
_GROUP_PART = re.compile(r"^\s*\+[-+ ]{3,80}(?:\d{1,6}|\.\.\.)?[- ]{0,80}$")
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_QUOTE = re.compile(r"^\s{0,20}(?:[>*+-]\s{1,4}|\d{1,3}[.)]\s{1,4}){0,3}")
_MENTION = re.compile(r"(?:^|[\s(|>]|([\"'`]))((?:[A-Za-z_]\w{0,120}\.){0,20}[A-Z]\w{0,120}): (\S.*)")
_FILTERED = ("SimplifiedTraceback", "UnfilteredStackTrace", "JaxStackTraceBeforeTransformation")


def exceptions(text: str) -> list[Raised]:
    """Exceptions found in a cleaned text, in printed order; empty where it holds no traceback."""
    reader = _Reader()
    grouped = "Exception Group" in text or "ExceptionGroup" in text
    for line in text.split("\n"):
        if grouped and _GROUP_PART.match(line):
            reader.part()
            continue
        reader.feed(_GROUP_BAR.sub("", line, count=1) if grouped else line)
        if len(reader.found) >= MOST_EXCEPTIONS:
            break
    reader.finish()
    return [_unwrapped(one) for one in reader.found if one.type.rsplit(".", 1)[-1] not in _FILTERED]


def _unwrapped(one: Raised) -> Raised:
    """Older JAX puts the exception of a filtered traceback into the message of another."""
    kind, message = split_message(one.message) if one.type.endswith("StackTrace") else ("", "")
    return replace(one, type=kind, message=message) if kind else one


def mentions(text: str) -> list[Raised]:
    """Exceptions quoted inside prose, a list or a log: `… fails with > Type: message`; empty where there is none."""
    lines = [_QUOTE.sub("", line) for line in text.split("\n")[:2000]]
    found = []
    for number, line in enumerate(lines):
        hit = _MENTION.search(line)
        if hit is None or not _is_type(hit[2]):
            continue
        rest = [hit[3]]
        for more in lines[number + 1 : number + 6]:
            if not more.strip() or _MENTION.search(more):
                break
            rest.append(more)
        message = "\n".join(rest)
        if hit[1] and hit[1] in message:  # up to the quotation mark that closes it
            message = message.rsplit(hit[1], 1)[0]
        found.append(Raised(hit[2], message.strip()[:LONGEST_MESSAGE]))
    return found[:MOST_EXCEPTIONS]


def split_message(text: str) -> tuple[str, str]:
    """(type, message) of `Type: message`; the type is empty where the text is a bare message."""
    match = _RAISED.match(text.split("\n", 1)[0].strip())
    if match and match[2] is not None and _is_type(match[1]):
        rest = text.strip().split("\n", 1)
        return match[1], "\n".join([match[2], *rest[1:]]).strip()
    if match and match[2] is None and _is_type(match[1]):
        return match[1], ""
    return "", text.strip()


def _is_type(name: str) -> bool:
    last = name.rsplit(".", 1)[-1]
    return bool(_TYPELIKE.search(last)) or last in ("KeyboardInterrupt", "SystemExit", "NotImplemented")


class _Reader:
    """Line by line; the state is what the last lines were."""

    def __init__(self) -> None:
        self.found: list[Raised] = []
        self.now: Raised | None = None
        self.note = ""
        self.state = "out"  # out | frames | message
        self.blank = 0
        self.last_def = ""
        self.marked = ""
        self.title = ""
        self.old_frame: tuple[str, str] | None = None

    def part(self) -> None:
        self.finish()
        self.note = "in a group"

    def finish(self) -> None:
        if self.now is not None and (self.now.type or self.now.frames):
            self.now.message = self.now.message.strip()[:LONGEST_MESSAGE]
            if not self.now.type and self.title:
                self.now.type = self.title
            self.found.append(self.now)
        self.now, self.state, self.title, self.old_frame = None, "out", "", None

    def feed(self, line: str) -> None:
        if self._structure(line) or self._frame(line):
            return
        if error := _TEST_ERROR.match(line):
            self._test_error(error[1])
        elif self.state == "message" and self.now is not None:
            self._more(line)
        elif found := _ARROW.match(line):
            self._source(found[2], int(found[1]))
        elif line[:1] not in (" ", "\t", "", ">") and self.state == "frames":
            self._raised(line)
        elif found := _DEF.match(line):
            self.last_def = found[1]
        elif found := _MARK.match(line):  # pytest prints the line before its place
            self.marked = found[1]
        elif self.state == "frames" and line[:4] == "    ":
            self._source(line)

    def _structure(self, line: str) -> bool:
        text = line.strip()
        if text in (_CAUSE, _CONTEXT):
            self.finish()
            self.note = "caused by the one before" if text == _CAUSE else "while handling the one before"
            return True
        if title := _IPY_TITLE.match(line):
            self.finish()
            self._begin()
            self.title = title[1]
            return True
        if _HEADER.match(line):
            if self.state == "frames" and self.title:  # IPython prints the title line first
                return True
            self.finish()
            self._begin()
            return True
        return False

    def _begin(self) -> Raised:
        self.now, self.note, self.state = Raised(note=self.note), "", "frames"
        return self.now

    def _frame(self, line: str) -> bool:
        frame = None
        if found := _PY_FRAME.match(line):
            frame = Frame(found[1], int(found[2]), (found[3] or "").strip())
        elif found := _IPY_FRAME.match(line):
            frame = Frame(found[1], int(found[2]), found[3] or "")
        elif self.title and (found := _CELL_FRAME.match(line)):
            frame = Frame(found[1], int(found[2] or 0), (found[3] or "").split("(")[0])
        elif found := _OLD_IPY_FRAME.match(line):
            self.old_frame = (found[1], found[2])
            return True
        elif self.old_frame and (found := _ARROW.match(line)):
            frame = Frame(self.old_frame[0], int(found[1]), self.old_frame[1], found[2].strip())
            self.old_frame = None
        elif found := _TEST_FRAME.match(line):
            return self._test_frame(found[1], int(found[2]), found[3].strip())
        if frame is None:
            return False
        if self.state == "message" or self.now is None:  # the head of this traceback is cut off
            self.finish()
            self._begin()
        self._add(frame)
        return True

    def _add(self, frame: Frame) -> None:
        if self.now is not None and len(self.now.frames) < MOST_FRAMES:
            self.now.frames.append(frame)
        self.state = "frames"

    def _source(self, text: str, line: int = 0) -> None:
        """The source line below a frame; IPython prints several and numbers them."""
        last = self.now.frames[-1] if self.now is not None and self.now.frames else None
        if self.now is not None and last is not None and not last.text and line in (0, last.line):
            self.now.frames[-1] = replace(last, text=text.strip()[:400])

    def _test_frame(self, file: str, line: int, what: str) -> bool:
        if what.startswith("in "):
            function = what[3:]
        elif not what or (_RAISED.match(what) and not what.startswith(("error", "warning", "note"))):
            function = self.last_def
        else:
            return False
        if self.now is None:
            self._begin()
        assert self.now is not None
        closing = bool(what) and not what.startswith("in ")
        kept = (self.now.type, self.now.message)
        self._add(Frame(file, line, function, self.marked))
        self.marked = ""
        if closing:  # pytest names the type on the last location, after the `E` lines
            self.now.type = kept[0] or what.split(":")[0]
            self.finish()
        return True

    def _test_error(self, text: str) -> None:
        if self.now is None:
            self._begin()
        assert self.now is not None
        if not self.now.type and (found := _RAISED.match(text.strip())) and found[2] is not None:
            if _is_type(found[1]) or found[1][0].isupper() or "." in found[1]:
                self.now.type, self.now.message = found[1], found[2]
        elif not self.now.type and _RAISED.match(text.strip()) and _is_type(text.strip()):
            self.now.type = text.strip()
        elif self.now.type and not text.lstrip().startswith(("+  where", "assert ")):
            self._append(text)

    def _raised(self, line: str) -> None:
        assert self.now is not None
        found = _RAISED.match(line.rstrip())
        if found and (found[2] is not None or _is_type(found[1]) or found[1] == self.title):
            self.now.type, self.now.message, self.state, self.blank = found[1], found[2] or "", "message", 0

    def _more(self, line: str) -> None:
        if not line.strip():
            self.blank += 1
            if self.blank > 3:
                self.finish()
            return
        if line.startswith("-----") or _DEF.match(line) or (self.blank and line.startswith((">>>", "$ ", "In ["))):
            self.finish()
            return
        self._append("\n" * self.blank + line)
        self.blank = 0

    def _append(self, text: str) -> None:
        assert self.now is not None
        if len(self.now.message) < LONGEST_MESSAGE:
            self.now.message += "\n" + text
