"""What a program counts of its own work: "step 5/9", a bar, an epoch of several."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 300  # bytes of a line that are looked at
_SHARE: Final = 100  # a hundredth of the whole is as good as none
_TOTALS: Final = 256
_OFTEN: Final = 3  # lines of one total before what lies between them is known
_COUNT: Final = re.compile(rb"(?<![\w./\-])(?P<at>\d{1,10}) {0,12}(?:/|of|out of) {0,12}(?P<all>\d{1,10})(?![\w./:\-]|\.\d)")
# The first that a line has, whatever stands behind it: "[10/10: 2560/3750 (67%)]".
_FIRST: Final = re.compile(rb"(?<![\w./\-])(?P<at>\d{1,10}) {0,12}(?:/|of|out of) {0,12}(?P<all>\d{1,10})(?![\w./\-]|:\d)")
# A program's own count of its steps, of epochs where it counts these too: "step:1335/1335", "Epoch [5/5], Step [600/600]".
_STEPS: Final = re.compile(
    rb"\b(?:global[_ ]?|train\w*_)?(?:steps?|iter(?:ation)?s?)\b\W{0,12}"
    rb"(?P<at>\d{1,12}) {0,12}(?:/|of) {0,12}(?P<all>\d{1,12})\b",
    re.IGNORECASE,
)
# The same in other words, and of an epoch: "batch 300/1000", "train: 300/1000", "Epoch: [1][250/300]", a bar of "Epoch 1:".
_OTHERS: Final = re.compile(
    rb"(?:\b(?:train(?:ing)?|(?:mini-?|num_)?batch(?:es)?|(?:num_)?updates?|it)\b\W{0,12}"
    rb"|\bepochs?\b\W{0,12}\d{1,12}(?: {0,12}(?:/|of) {0,12}\d{1,12})?\W{0,6}\[ {0,12}"
    rb"|\bepoch \d{1,12}\b[^|]{0,40}\d{1,3}%\|[^|]{0,200}\| ?)"
    rb"(?P<at>\d{1,12}) {0,12}(?:/|of) {0,12}(?P<all>\d{1,12})\b(?: {0,4}\((?P<share>\d{1,3})(?:\.\d{1,6})?%\))?",
    re.IGNORECASE,
)
_OF_AN_EPOCH: Final = re.compile(rb"\bepochs?\b\W{0,12}(\d{1,12})", re.IGNORECASE)
# A bar of tqdm's, of all steps or of all epochs; what is loaded, downloaded or evaluated in between is no work of the whole.
_BAR: Final = re.compile(
    rb"(?:\(\w+ pid=[^)]*\) ?|\[rank\d+\]: ?)?"
    rb"(?:(?:(?:Train\w*|Step|Iter\w*|Generat\w*|Infer\w*)\b(?:(?!epoch)[^|]){0,40}|Epochs?|Epoch \d+/\d+\b[^|]{0,40}):?)? *"
    rb"\d{1,3}%\|[^|]{0,200}\| ?(?P<at>\d{1,12})/(?P<all>\d{1,12}) \[",
    re.IGNORECASE,
)
# Any bar, also of bytes ("4.31G/10.0G [00:41<00:53, 106MB/s]"): of tqdm's unit_scale.
_ANY_BAR: Final = re.compile(
    rb"\d{1,3}%\|[^|]{0,200}\| ?(?P<at>\d{1,12}(?:\.\d{1,3})?)(?P<at_unit>[kKMGTP]?)i?B?"
    rb"/(?P<all>\d{1,12}(?:\.\d{1,3})?)(?P<all_unit>[kKMGTP]?)i?B? \["
)
_UNITS: Final = b"KMGTP"
_EPOCH: Final = re.compile(rb"\bepochs?\b(?:\W{0,12}(?P<at>\d{1,12}) {0,12}(?:/|of) {0,12}(?P<all>\d{1,12})\b)?", re.IGNORECASE)

# Of another program, or of a part of one, that looks at what was trained: "eval step 50/500", "Test: [ 0/10]".
_EVALUATES: Final = re.compile(
    rb"\b(?:eval(?:uat\w+)?|valid(?:at\w+)?|val|test(?:ing)?)(?![a-z])[\W_]{1,4}"
    rb"(?:(?:epochs?|steps?|iter\w*|batch\w*)\b|\[? *\d+ {0,3}/)",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(rb"\b(?:steps?|iter(?:ation)?s?|updates?)\b\W{0,12}(\d{1,12})\b", re.IGNORECASE)


class _Count:
    """How far a count of one total has come."""

    __slots__ = ("at", "epoch", "lines", "round", "stride")

    def __init__(self) -> None:
        self.at = self.lines = self.stride = self.epoch = 0
        self.round = 0  # where the last epoch's ended: a rank's share of what is counted may be less than all

    def come(self, at: int, epoch: int) -> None:
        self.lines += 1
        if self.lines == 1 or at * 2 < self.at:  # an epoch's begins anew; other ranks lag less
            if epoch > self.epoch:
                self.round = self.at
            self.at = at
        self.epoch = epoch
        # from nought, the last is one less than all
        self.stride, self.at = max(self.stride, at - self.at, at == 0), max(self.at, at)

    def ends(self, at: int, all_: int) -> bool:
        """Whether the next line would be beyond the end."""
        return at + self.stride > all_ or 0 < self.round <= at

    def short(self, all_: int, latest: bool) -> int:
        """What is left, where that is more than lies between two lines; of a few lines, where it is more than half, and the
        `latest` work counts."""
        lacks = self.at + self.stride < (self.round or all_) and (self.lines >= _OFTEN or (latest and self.at * 2 < all_))
        return _rest(self.at, all_) if lacks else 0


class Counts:
    """Feed it the lines of one program that show work."""

    def __init__(self) -> None:
        self.line = b""  # the last that counts steps
        self._left = 0
        self.number = 0  # of the last line that counts
        self.numbered = False  # it numbers steps or epochs, and not of an evaluation alone
        self._from_nought = set[int]()  # totals
        self._outermost = True  # the last line that counts begins with a full count
        self._bars: dict[bytes, bytes] = {}  # what bars count up to -> how far they have come
        self._each: dict[int, _Count] = {}
        self._total = 0  # of the steps, by their last line
        self.evaluates = False  # by the last line
        self.anew = False  # the last line begins again from a much smaller number, in no other epoch
        self._trains = False
        self._counted = False  # the last line does, and not for the first time
        self._at = self._epoch = 0

    def follow(self, line: bytes) -> None:
        """Whose work a line shows: that of the line before, or another's."""
        self.evaluates = _EVALUATES.search(line[:_LONGEST]) is not None
        self._trains |= not self.evaluates
        self._counted = False
        step, epoch = _NUMBER.search(line[:_LONGEST]), _OF_AN_EPOCH.search(line[:_LONGEST])
        self.numbered |= not self.evaluates and bool(step or epoch)
        self.anew = False
        if step is None or self.evaluates:
            return
        at, of = int(step[1]), int(epoch[1]) if epoch else 0
        self.anew = at * 2 < self._at and of <= self._epoch  # other ranks lag less
        self._at, self._epoch = at, of

    def feed(self, line: bytes, number: int = 0) -> int:
        """The largest number that a line counts up to; 0 where it counts nothing."""
        if b"/" not in line and b" of " not in line:
            return 0
        head = line[:_LONGEST]
        steps, bar = _STEPS.search(line), _BAR.match(line) if b"%|" in line else None
        if steps or bar:
            self.line = line
        epochs = (one for one in _EPOCH.finditer(head) if one["at"] is not None)
        own = {(int(one["at"]), int(one["all"])) for one in (steps, bar, *epochs) if one is not None}
        own |= {(_at(one), int(one["all"])) for one in _OTHERS.finditer(head)}
        # whatever else such a line counts is none of its work: dates, memory, ranks; and a line without one counts files, pages
        last = own or {(int(one["at"]), int(one["all"])) for one in _COUNT.finditer(head)}
        if not last:
            return 0
        first = _FIRST.search(head)
        self._outermost, self.number = first is not None and self._is_last(int(first["at"]), int(first["all"])), number
        self._counted = bar is not None or any(all_ in self._each for _, all_ in own)  # of one line may be a first one only
        if steps is not None:
            self._goes_on(int(steps["at"]), int(steps["all"]))
        of = _OF_AN_EPOCH.search(head)
        for at, all_ in own:
            self._come(at, all_, int(of[1]) if of else 0)
        self._left = max(0 if self._last(at, all_) else _rest(at, all_) for at, all_ in last)
        if self.evaluates and self._trains:
            return 0  # what was trained is not counted on
        return max((all_ for _, all_ in own), default=0)

    def begun(self, line: bytes) -> None:
        """A bar that is drawn before the first step."""
        bar = _BAR.match(line)
        if bar is not None and int(bar["at"]) == 0 and int(bar["all"]) not in self._each:
            self._come(0, int(bar["all"]), 0)
            self._counted = True

    def _come(self, at: int, all_: int, epoch: int) -> None:
        if all_ in self._each or len(self._each) < _TOTALS:
            self._each.setdefault(all_, _Count()).come(at, epoch)

    def _goes_on(self, at: int, all_: int) -> None:
        """Steps that are counted on with another total, as where a data set is made anew in between."""
        before = self._each.get(self._total)
        if all_ not in self._each and before is not None and before.at < at <= before.at + 2 * before.stride:
            self._each[all_] = self._each.pop(self._total)
        self._total = all_

    def _last(self, at: int, all_: int) -> bool:
        """Whether the next line of that count would be beyond its end."""
        count = self._each.get(all_)
        return count is not None and count.lines >= _OFTEN and count.ends(at, all_)

    def _is_last(self, at: int, all_: int) -> bool:
        """Whether a count is at its end, or at one less where it began with nought."""
        if at == 0 and len(self._from_nought) < _TOTALS:
            self._from_nought.add(all_)
        return at == all_ or (at + 1 == all_ and all_ in self._from_nought)

    def redrawn(self, line: bytes) -> bool:
        """Whether a bar shows nothing new: none of its steps, or what it has shown, as where tqdm draws it again to close it,
        also behind what ended the program."""
        bar = _ANY_BAR.search(line) if b"%|" in line else None
        if bar is None:
            return False
        again = self._bars.get(bar["all"]) == bar["at"] or _size(bar, "at") == 0
        if bar["all"] in self._bars or len(self._bars) < _TOTALS:
            self._bars[bar["all"]] = bar["at"]
        return again

    def filled(self, line: bytes) -> bool:
        """Whether a line is a bar of the work that is full."""
        bar = _BAR.match(line)
        return bar is not None and bar["at"] == bar["all"] and not self.left

    def stopped(self) -> None:
        """The program says that it takes no further steps: what was left of them is not to come."""
        self._left = 0
        self._each.clear()

    @property
    def left(self) -> int:
        """What is left by the last line that counts, or of what most lines count where that is more than lies between two of
        them: many programs tell every tenth step only, and not the last, and count an evaluation behind all."""
        return max(self._left, self.short)

    @property
    def short(self) -> int:
        """What is left of what most lines count, where that is more than lies between two of them."""
        lines = max((count.lines for count in self._each.values()), default=0)
        most = ((all_, count) for all_, count in self._each.items() if count.lines == lines)
        return max((count.short(all_, self._counted) for all_, count in most), default=0)

    @property
    def whole(self) -> bool:
        """Whether the outermost count of the last line that has one is full, where that may leave out what is within it."""
        return self._outermost or not self.left

    @property
    def full(self) -> str:
        """The program's own count of its steps, and of epochs where it counts these, if it has come to its end: "5 of 5"."""
        bar, epochs = _BAR.match(self.line), list(_EPOCH.finditer(self.line))
        steps = bar or _STEPS.search(self.line)
        if bar is not None:  # of epochs, or of the steps of one that it names
            epochs = [one for one in epochs if one["at"] is not None]
        if steps is None or self.left:
            return ""
        if any(one["at"] is None or int(one["at"]) != int(one["all"]) for one in (steps, *epochs)):
            return ""
        return f"{int(steps['at'])} of {int(steps['all'])}"


def _at(one: re.Match[bytes]) -> int:
    """How far it has come; by the share that is told beside it, where the count is of one rank's share of all."""
    return max(int(one["at"]), int(one["all"]) * int(one["share"] or 0) // 100)


def _rest(at: int, all_: int) -> int:
    return 0 if (all_ - at) * _SHARE <= all_ else all_ - at


def is_bar(line: bytes) -> bool:
    return _ANY_BAR.search(line) is not None


def unfilled(line: bytes) -> bool:
    """Whether a line is a bar, of whatever, that is not full."""
    bar = _ANY_BAR.search(line)
    return bar is not None and _size(bar, "at") < _size(bar, "all")


def _size(bar: re.Match[bytes], name: str) -> float:
    """One side of a bar's count, of which each may have a unit of its own."""
    unit = bar[name + "_unit"].upper()
    return float(bar[name]) * float(1000 ** (_UNITS.index(unit) + 1 if unit else 0))
