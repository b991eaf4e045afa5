"""The parts of a chat's answer that are text: what the reader sees of the white space between them."""

from __future__ import annotations

from mlxd.engines.stop_text import StopText


class _Shown:
    """Text on its way to the reader."""

    def __init__(self) -> None:
        self._out: list[str] = []

    def take(self) -> str:
        """The text that became safe to show."""
        if not self._out:
            return ""
        text = "".join(self._out)
        self._out.clear()
        return text


class ContentText(_Shown):
    """The answer's own text. Stop strings are looked for in it, and in nothing else.

    Reasoning and calls cut it into runs. White space that begins a run is only a distance: it is shown if text
    follows and there is something before it that is shown as text, or nothing at all.
    """

    def __init__(self, stop: StopText | None) -> None:
        super().__init__()
        self._stop = stop
        self._blank = ""
        self._in_run = False
        self._has_text = False
        self._is_first_run = True

    @property
    def stopped(self) -> bool:
        return self._stop is not None and self._stop.found

    def add(self, text: str) -> None:
        """More text of this run."""
        if not self._in_run:
            text = self._begin(self._blank + text)
        if text:
            self._has_text = True
            self._out.append(self._stop.feed(text) if self._stop is not None else text)

    def _begin(self, text: str) -> str:
        """What is shown of the beginning of a run."""
        is_distance = self._has_text or self._is_first_run
        # Blank text that holds a stop string has to end the answer now.
        ends = is_distance and self._stop is not None and self._stop.is_in(text)
        if not ends and text.isspace():
            self._blank = text
            return ""
        self._blank, self._in_run = "", True
        return text if is_distance else text.lstrip()

    def end_run(self) -> None:
        """Reasoning or a call comes, or came."""
        self._blank, self._in_run, self._is_first_run = "", False, False

    def finish(self) -> None:
        """The answer ends without a stop string: show what was held back."""
        blank, self._blank = self._blank, ""
        if self._is_first_run and blank:
            self._out.append(self._stop.feed(blank) if self._stop is not None else blank)
        if self._stop is not None:
            self._out.append(self._stop.flush())


class ReasoningText(_Shown):
    """The model's reasoning without the white space around it; a further stretch of it begins on a new line."""

    def __init__(self) -> None:
        super().__init__()
        self._blank = ""
        self._has_text = False
        self._in_run = False

    def add(self, text: str) -> None:
        """More reasoning."""
        if not self._in_run:
            text = text.lstrip()
            if not text:
                return
            self._blank = "\n" if self._has_text else ""
            self._in_run = self._has_text = True
        shown = text.rstrip()
        if not shown:
            self._blank += text
            return
        self._out.append(self._blank + shown)
        self._blank = text[len(shown) :]

    def end_run(self) -> None:
        """Something else comes, and white space at the end is not shown."""
        self._blank, self._in_run = "", False
