"""A sweep space, and runs that compute a formula in place of training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.engine import samplers, storage, study
from puffer_mlx.sweep.engine.driver import Driver
from puffer_mlx.sweep.engine.samplers import make_sampler
from puffer_mlx.sweep.engine.storage import open_storage
from puffer_mlx.sweep.engine.study import POINT_INDEX, RUN_NUMBER, Study
from puffer_mlx.sweep.reading import Sweep
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Parameter, Space
from puffer_mlx.sweep.training_process import Slot
from puffer_mlx.system.signals import Interrupts

SPACE = Space(
    [
        Parameter(
            "train", "total_timesteps", "log_normal", 1e4, 1e6, integer=True, default=100_000.0
        ),
        Parameter("train", "gamma", "logit_normal", 0.8, 0.9999, default=0.99),
        Parameter("train", "horizon", "uniform_pow2", 8, 512, integer=True, default=64.0),
        Parameter("env", "frameskip", "int_uniform", 1, 8, integer=True, default=4.0),
        Parameter("train", "vf_coef", "uniform", 0.1, 5.0, default=2.0),
    ]
)
ABOUT = {"env": "formula"}


def settings(**given: Any) -> SweepSettings:
    few = {"max_runs": 6, "downsample": 3, "num_random_samples": 2, "gp_training_iter": 3}
    few |= {"confirm": 0, "early_stop_quantile": 0}
    return SweepSettings(**{**few, "suggestions_per_pareto": 8, **given})


def formula(values: dict[str, float]) -> list[Point]:
    """Compute a sweep run's learning curve of three points from its parameters."""
    steps = values["train.total_timesteps"]
    skill = -abs(math.log10(1 - values["train.gamma"]) + 2) - abs(values["train.vf_coef"] - 1)
    skill -= values["env.frameskip"] / 10 + abs(math.log2(values["train.horizon"]) - 5) / 5
    parts = steps / 3, 2 * steps / 3, steps
    return [Point(skill + math.log10(part), part / 1000, part) for part in parts]


@dataclass
class Formula:
    """Stub of a sweep's run that ends at once, with a score by ``formula``."""

    trial: FrozenTrial
    slot: Slot
    seed: int = 0
    fault: str = ""
    stopped: str = ""
    ends: list[str] = field(default_factory=list)
    identity: Any = None

    def poll(self) -> list[Point]:
        return formula(self.trial.params)[:-1]

    def outcome(self) -> Outcome | None:
        points = formula(self.trial.params)
        if self.stopped:
            return Outcome(points[:2], "", self.stopped)
        return Outcome([] if self.fault else points, self.fault)

    def stop(self, why: str) -> None:
        self.stopped = why

    def is_running(self) -> bool:
        return not self.stopped

    def end(self, timeout: float | None = None) -> None:
        self.ends.append("ended")


def open_study(
    path: Path | str, how: SweepSettings, seed: int = 1, space: Space = SPACE, **about: Any
) -> Study:
    """Open the study in a journal file, created if it doesn't exist."""
    storage = open_storage(str(path))
    sampler = make_sampler(space, how, seed, lambda values: values)
    swept = Sweep(how, space, [])
    return study.open_study(storage, "formula", swept, {**ABOUT, **about}, sampler)


def driver(study: Study, how: SweepSettings, start: Any = Formula, **more: Any) -> Driver:
    slots = more.pop("slots", [Slot()])
    tell = {"draw": lambda active: None, "on_end": lambda run: None, **more}
    tell = {"interrupts": Interrupts(), **tell}
    return Driver(study, start, slots, how.max_runs, pause=0.0, **tell)


def drive(study: Study, how: SweepSettings, start: Any = Formula, **more: Any) -> list[FrozenTrial]:
    """Run a study's sweep to the end. Returns the ended runs in order."""
    over: list[FrozenTrial] = []
    driver(study, how, start, **{"on_end": over.append, **more}).run()
    return over


def known(study: Study) -> list[tuple]:
    """Return all that a study stores about its runs, except times."""
    return [
        (
            trial.state.name,
            trial.params,
            trial.values,
            {
                name: trial.user_attrs.get(name)
                for name in (RUN_NUMBER, POINT_INDEX, "fault", "stopped")
            },
        )
        for trial in study.trials()
    ]


def refuse(run: FrozenTrial, slot: Slot, seed: int) -> Formula:
    raise UserError("no such thing", "another")


COMPLETE = TrialState.COMPLETE


DEAD = ["this machine", 2**22 + 1, 1.0]  # no process


class Died(BaseException):
    """Exception that stands in for a SIGKILL: no code catches it."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, writes: int) -> Iterator[None]:
    """Let a study's process die (``Died``) before one of its writes to the journal."""
    backend, left = storage.JournalFileBackend, [writes]
    real = backend.append_logs

    def append(self, logs):
        left[0] -= len(logs)
        if left[0] < 0:
            raise Died
        real(self, logs)

    with monkeypatch.context() as patch:
        patch.setattr(samplers, "process_name", lambda: list(DEAD))
        patch.setattr(study, "process_name", lambda: list(DEAD))
        patch.setattr(backend, "append_logs", append)
        with pytest.raises(Died):
            yield
