"""Scheduled retraining on one machine: a crontab line and a systemd timer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qat_lib.errors import ConfigError

_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FIELDS: Mapping[str, tuple[int, int]] = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day of the month": (1, 31),
    "month": (1, 12),
    "day of the week": (0, 7),
}
_PART = re.compile(r"(\*|\d+)(?:-(\d+))?(?:/(\d+))?")


@dataclass(frozen=True, kw_only=True)
class LocalSchedule:
    """A command and its schedule.

    Attributes:
        cron: five fields: minute, hour, day of the month, month, day of the week.
        command: the command and its arguments.
        folder: the working directory.
        log: file for the command's output.
    """

    cron: str
    command: Sequence[str]
    folder: Path
    log: Path

    def crontab(self) -> str:
        """Return the crontab line, with ``%`` escaped; an unescaped one ends the command."""
        # The shell opens the log before the command creates its folder.
        prepared = f"mkdir -p {shlex.quote(str(self.log.parent))}"
        shell = f"cd {shlex.quote(str(self.folder))} && {prepared} && {shlex.join(self.command)}"
        line = f"{shell} >> {shlex.quote(str(self.log))} 2>&1".replace("%", r"\%")
        return f"{' '.join(self.cron.split())} {line}"

    def service(self) -> str:
        """Return a systemd unit that runs the command once."""
        words = [_systemd_word(word) for word in self.command]
        return (
            "[Unit]\nDescription=Retraining with qatline\n\n"
            "[Service]\nType=oneshot\n"
            f"WorkingDirectory={str(self.folder).replace('%', '%%')}\n"
            f"ExecStart={' '.join(words)}\n"
            "# 3: the gate rejected the candidate, and the champion stays.\n"
            "SuccessExitStatus=3\n"
        )

    def timer(self) -> str:
        """Return the systemd timer of the service.

        Raises:
            ConfigError: systemd cannot express the cron fields.
        """
        return (
            "[Unit]\nDescription=Schedule of retraining with qatline\n\n"
            f"[Timer]\nOnCalendar={on_calendar(self.cron)}\nPersistent=true\n\n"
            "[Install]\nWantedBy=timers.target\n"
        )


def on_calendar(cron: str) -> str:
    """Return five cron fields as systemd's ``OnCalendar``.

    Examples:
        >>> on_calendar("30 2 * * 1-5")
        'Mon..Fri *-*-* 02:30:00'

    Raises:
        ConfigError: a field is wrong, or both day fields are restricted: cron then runs on either,
            systemd on their intersection.
    """
    fields = cron.split()
    if len(fields) != len(_FIELDS):
        raise ConfigError(
            "Expected five cron fields (minute, hour, day of the month, month, day of the week), "
            f"such as '0 2 * * *'; received {cron!r}."
        )
    converted = []
    for (name, (least, most)), text in zip(_FIELDS.items(), fields, strict=True):
        parts = [_part(name, part, least, most) for part in text.split(",")]
        converted.append(",".join(parts))
    minute, hour, day, month, weekday = converted
    # The two schedulers disagree here, so no translation exists.
    if day != "*" and weekday != "*":
        raise ConfigError(
            f"Expected a day of the month or a day of the week, received both: {cron!r}. Cron "
            "would run on either of them, systemd on those that are both. Use two schedules."
        )
    days = "" if weekday == "*" else f"{weekday} "
    return f"{days}*-{month}-{day} {hour}:{minute}:00"


def _part(name: str, text: str, least: int, most: int) -> str:
    match = _PART.fullmatch(text)
    start, end, step = match.groups() if match else (None, None, None)
    numbers = [int(each) for each in (start, end) if each not in (None, "*")]
    wrong = match is None or (start == "*" and end is not None) or step == "0"
    if wrong or any(not least <= number <= most for number in numbers):
        raise ConfigError(
            f"{name}: expected *, a number from {least} to {most}, a list, a range or a step such "
            f"as */2; received {text!r}."
        )
    if name == "day of the week":
        if step is not None:
            raise ConfigError(f"day of the week: expected no step, received {text!r}.")
        if start in (None, "*"):
            return "*"
        first = _DAYS[int(str(start))]
        # systemd has names for the days; numbers are an error there.
        return first if end is None else f"{first}..{_DAYS[int(end)]}"
    shown = [f"{number:02d}" for number in numbers]
    if start == "*":
        return f"{least:02d}/{step}" if step else "*"
    ranged = "..".join(shown)
    return f"{ranged}/{step}" if step else ranged


def _systemd_word(word: str) -> str:
    """Return a word of ``ExecStart`` with ``%``, ``$`` and quotes escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', r"\"").replace("%", "%%")
    escaped = escaped.replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[\s;'\"\\]", word) else escaped
