"""Errors that cross from a worker to the daemon: of every kind, with all that is known, and whatever is in them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest

from mlxd.engines import errors
from mlxd.engines.errors import EngineCrashed, InvalidRequest, LoadError, LoadFailure, StepFailed
from mlxd.engines.worker.error_forms import error_of, form_of
from mlxd.engines.worker.frames import Frames, frame
from mlxd.engines.worker.to_daemon import Reply, ToDaemon

MADE = [
    errors.ContextLengthExceeded(1, 2, 3),
    errors.InputTooLong(4, 5, 6).at("documents"),
    errors.WrongModelKind("no vectors here"),
    errors.GuideError("it ends"),
    InvalidRequest("wrong", "messages"),
    errors.EngineQueueFull(7, 8),
    errors.TokenizersBusy("m", 1.5),
    errors.DiskFull("/scratch", "no space"),
    errors.MemoryRefusal("none", "r", 9, 10),
    errors.PrefillMemoryExceeded("r", 11, 12, "memory.ceiling"),
    errors.MemoryWaitTimeout("r", 13, 14, 1.5),
    errors.FootprintExceeded(15, 16, "memory.ceiling"),
    errors.AbortedByOperator(17, 18, "memory.ceiling"),
    StepFailed("it broke"),
    LoadError(LoadFailure.OUT_OF_MEMORY, "too big"),
    errors.EngineClosed("gone"),
    errors.EngineDead("dead", facts={"exit_code": -9, "output": ["a", "b"]}, suspects=("f1", "f2")),
    EngineCrashed("crashed", facts={"signal": None}),
    errors.ModelOwnershipError("twice"),
    errors.RequestError("this one"),
    errors.EngineError("any"),
]


def crossed(error: BaseException) -> Exception:
    (reply,) = Frames(ToDaemon).feed(frame(Reply(1, error=form_of(error))))
    return error_of(reply.error)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_engines_error_is_the_same_on_the_other_side(error):
    arrived = crossed(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args
    assert vars(arrived) == vars(error)
    assert [type(value) for value in vars(arrived).values()] == [type(value) for value in vars(error).values()]


def test_every_kind_of_error_is_among_those():
    def kinds() -> Iterator[type]:
        for _, kind in inspect.getmembers(errors, inspect.isclass):
            if issubclass(kind, errors.EngineError):
                yield kind

    assert set(kinds()) == {type(error) for error in MADE}


def test_a_kind_that_the_daemon_does_not_have_arrives_as_the_nearest_that_it_has():
    class Narrower(errors.GuideError):
        pass

    assert type(crossed(Narrower("it ends"))) is errors.GuideError


def test_a_strangers_error_is_no_engines_error_even_if_it_is_called_like_one():
    stranger = type("LoadError", (Exception,), {})
    arrived = crossed(stranger("x"))
    assert type(arrived) is StepFailed
    assert str(arrived) == "LoadError: x"


def test_odd_values_in_an_error_cross_as_what_they_are_or_what_they_say():
    class Unsayable:
        def __str__(self) -> str:
            raise RuntimeError

    odd = InvalidRequest("a lone \ud800", "p")
    vars(odd).update(big=2**70, array=np.int64(7), real=np.float32(0.5), unsayable=Unsayable(), nested={1: (b"x",)})
    arrived = crossed(odd)
    assert str(arrived) == "a lone \\ud800"
    assert vars(arrived) == {
        "param": "p",
        "big": hex(2**70),
        "array": 7,
        "real": 0.5,
        "unsayable": "Unsayable that says RuntimeError",
        "nested": {"1": ["b'x'"]},
    }


def test_an_exception_that_cannot_say_what_it_is_crosses_all_the_same():
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert str(crossed(Broken())) == "Broken: Broken that says KeyError"


def test_notes_on_an_error_cross():
    error = StepFailed("x")
    error.add_note("and more")
    assert crossed(error).__notes__ == ["and more"]
