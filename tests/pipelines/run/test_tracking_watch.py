"""A store that goes away while a step runs."""

import time

import pytest

from qat_lib.errors import TrackingError
from qatline.pipelines.run import tracking_watch
from qatline.pipelines.run.tracking_watch import TrackingWatch, watched


def away(_uri: str) -> None:
    raise TrackingError("nobody answers")


@pytest.mark.parametrize(
    ("required", "advice"), [(True, "then the run stops"), (False, "`qatline sync` records it")]
)
def test_watch_tells_once_that_the_store_is_away_and_back(
    monkeypatch: pytest.MonkeyPatch, required: bool, advice: str
) -> None:
    told = list[str]()
    watch = TrackingWatch("http://host", required=required, tell=told.append)
    monkeypatch.setattr(tracking_watch, "probe", away)
    watch.look()
    assert told == []
    for _ in range(3):
        watch.look()
    (message,) = told
    assert "the tracking store http://host has not answered since" in message
    assert advice in message
    monkeypatch.setattr(tracking_watch, "probe", lambda uri: None)
    for _ in range(2):
        watch.look()
    assert told[1:] == ["the tracking store http://host answers again"]


def test_watched_looks_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, looks = list[str](), list[float]()

    def probe(uri: str) -> None:
        looks.append(time.monotonic())
        away(uri)

    monkeypatch.setattr(tracking_watch, "probe", probe)
    monkeypatch.setattr(
        tracking_watch, "emit", lambda event, step, message: messages.append(message)
    )
    with watched("http://host", required=True, interval=0.01):
        deadline = time.monotonic() + 60
        while not messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(messages) == 1
    time.sleep(0.1)
    seen = len(looks)
    time.sleep(0.1)
    assert len(looks) == seen
