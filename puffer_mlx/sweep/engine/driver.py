"""The main loop of a sweep: start runs in free slots, watch them, and record their results."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.engine.study import FAULT, FINISHED, OWNER, Study, curves, own_name, processes
from puffer_mlx.sweep.observations import EarlyStop
from puffer_mlx.sweep.settings import FIRST_HELD_OUT
from puffer_mlx.sweep.training_process import STOP_TIMEOUT, Identity, Slot, TrainingProcess
from puffer_mlx.system import verbosity
from puffer_mlx.system.signals import Interrupts

FAILURES = 10  # failures in a row that end a sweep
INVALID = 100  # suggestions in a row that can't be run
PAUSE = 0.2  # seconds between two polls
YOUNG = 5.0  # seconds in which a new run may still lack its owner

# Starts a run with a seed's number. Raises UserError if its values can't be run.
Start = Callable[[FrozenTrial, Slot, int], TrainingProcess]


@dataclass(eq=False)
class ActiveRun:
    """A running process of a sweep that trains a run with one seed, possibly a held-out one.

    Attributes:
        early_stop: Early-stop test; None for further seeds of a run, which end normally.
        last: Newest point of the curve.
    """

    trial: FrozenTrial
    seed: int
    slot: Slot
    run: TrainingProcess
    early_stop: EarlyStop | None
    last: Point | None = None


class Driver:
    """Run a sweep in this process.

    Args:
        study: Trials of the sweep.
        start: Starts a run.
        slots: Slots, for one run each.
        most: Number of runs to finish, where each seed of a suggestion counts as one. No new
            suggestion is made after that.
        draw: Called with the active runs a few times a second.
        ended: Called with the trial of a run that finished with all of its seeds, or with one of
            its held-out seeds.
        interrupts: Signals that end the sweep. A second signal kills its runs at once.
        pause: Seconds between two polls.
    """

    def __init__(
        self,
        study: Study,
        start: Start,
        slots: Sequence[Slot],
        most: int,
        draw: Callable[[Sequence[ActiveRun]], None],
        ended: Callable[[FrozenTrial], None],
        interrupts: Interrupts,
        pause: float = PAUSE,
    ) -> None:
        self._study = study
        self._start = start
        self._most = most
        self._draw = draw
        self._ended = ended
        self._interrupts = interrupts
        self._pause = pause
        self._free = list(slots)
        self._active: list[ActiveRun] = []
        self._open: set[int] = set()  # numbers of this process's runs that may get further seeds
        self._failed = self._invalid = 0  # counts in a row

    def run(self) -> None:
        """Sweep until all runs are finished and confirmed.

        Afterwards, also after an error, no process is running and no trial is in the state RUNNING.

        Raises:
            UserError: If too many runs in a row failed.
            KeyboardInterrupt: If a signal arrived.
        """
        with self._interrupts.hold_back():  # so that every started process is recorded
            try:
                self._sweep()
            finally:
                self._end()

    def _sweep(self) -> None:
        left = self.orphans()
        while True:
            while self._free and self._begin(left):
                self._interrupts.check()
            if not self._active:
                return
            for active in list(self._active):
                if active in self._active:  # a failed seed also ends the other seeds of its run
                    self._look(active)
            self._draw(self._active)
            time.sleep(self._pause)
            self._interrupts.check()

    def _end(self) -> None:
        """Terminate all active runs, kill them after a timeout, and release unfinished trials."""
        signals = self._interrupts.count
        deadline = time.monotonic() + STOP_TIMEOUT
        for active in self._active:  # ask all of them before waiting
            active.run.stop("the sweep was ended")
        if self._active:
            limit = f"{STOP_TIMEOUT:.0f} s at most"
            verbosity.note(
                f"ending the active runs: {limit}; repeat to end them at once", error=True
            )
        while any(active.run.is_running() for active in self._active):
            if time.monotonic() > deadline or self._interrupts.count > signals:
                break
            time.sleep(self._pause)
        for active in self._active:
            active.run.end(0.0)
        self._study.release()

    # ---- starting --------------------------------------------------------------------------------

    def orphans(self) -> list[FrozenTrial]:
        """Take over runs of ended sweeps, and end the remaining processes of dead ones."""
        host = own_name()[0]
        left = []
        for run in self._study.runs(TrialState.RUNNING, TrialState.WAITING):
            if run.state == TrialState.WAITING:
                if self._study.take(run):
                    left.append(run)
                continue
            owner = run.user_attrs.get(OWNER)
            began = run.datetime_start
            if owner and (owner[0] != host or Identity(*owner[1:]).find()):
                continue  # another sweep is running it
            if not owner and began and time.time() - began.timestamp() < YOUNG:
                continue  # another sweep has just started it
            self._study.claim(run)  # before another process on this host takes it
            for process in processes(run):
                process.end()
            left.append(run)
        return left

    def _begin(self, left: list[FrozenTrial]) -> bool:
        """Start the next run. Returns False if none is left, True after a failed start too."""
        if further := self._further():
            run, seed = further
        elif left:
            run, seed = self._study.restart(left.pop(0)), 0
        elif self._study.trained(*FINISHED, TrialState.RUNNING) < self._most:
            run, seed = self._study.ask(), 0
        elif held_out := self._held_out():
            run, seed = held_out
        else:
            return False
        if seed == 0 and curves(run):  # resumed after its first seed
            self._open.add(run.number)
            return True
        try:
            process = self._start(run, self._free[0], seed)
        except UserError as error:
            if seed >= FIRST_HELD_OUT:  # it ran before, so something it needs is missing
                raise
            self._invalid += 1
            self._fail(run, "; ".join(filter(None, ("not started: " + error.message, error.hint))))
            if self._invalid >= INVALID:
                raise self._useless(f"{self._invalid} suggestions can't be run", run) from None
            return True
        self._invalid = 0
        early_stop = None
        if seed == 0:
            quantile = self._study.settings.stop_quantile
            early_stop = EarlyStop(self._study.finished_curves(), quantile)
        self._active.append(ActiveRun(run, seed, self._free.pop(0), process, early_stop))
        if process.identity and seed >= FIRST_HELD_OUT:
            self._study.note_holding(run, seed - FIRST_HELD_OUT, process.identity)
        elif process.identity:
            self._study.note_process(run, process.identity, seed)
        return True

    def _held_out(self) -> tuple[FrozenTrial, int] | None:
        """Return a run and a missing held-out seed of it, or None while the search is running here.

        A held-out seed left by a dead sweep on this host is taken over, and its process is ended.
        """
        if any(active.seed < FIRST_HELD_OUT for active in self._active):
            return None
        mine = own_name()
        for run, seed in self._study.missing_held_out():
            if holder := self._study.holder(run, seed):
                owner, process = holder
                if owner[0] != mine[0] or Identity(*owner[1:]).find():
                    continue  # another sweep or this one trains it
                if process:
                    Identity(*process).end()
            self._study.note_holding(run, seed)
            return run, FIRST_HELD_OUT + seed
        return None

    def _further(self) -> tuple[FrozenTrial, int] | None:
        """Return a run and its next seed, or None. Finishes the runs that get no more seeds."""
        while self._open:
            over: FrozenTrial | None = None
            for run, is_over, has_turn in self._study.seed_decisions([*self._open]):
                under_way = {each.seed for each in self._active if each.trial.number == run.number}
                lacking = {*range(self._study.settings.seeds)} - curves(run).keys() - under_way
                if lacking and has_turn and not is_over:
                    return run, min(lacking)
                if (is_over or not lacking) and not under_way:
                    over = run
                    break
            if over is None:
                return None
            self._open.remove(over.number)
            self._tell(over, Outcome(self._study.combined(over)))  # this may finish others
        return None

    # ---- watching --------------------------------------------------------------------------------

    def _look(self, active: ActiveRun) -> None:
        run = active.trial
        if news := active.run.look():
            active.last = news[-1]
            self._stop_early(active, news)
        if (outcome := active.run.outcome()) is None:
            return
        self._leave(active)
        if active.seed >= FIRST_HELD_OUT:
            self._study.note_held_out(run, active.seed - FIRST_HELD_OUT, outcome)
            self._ended(self._study.find(run.number))
            return
        self._failed = self._failed + 1 if outcome.fault else 0
        if outcome.fault:
            which = f"with its seed {active.seed + 1}: " if active.seed else ""
            self._fail(run, which + outcome.fault)
        elif outcome.stopped or self._study.settings.seeds == 1:
            self._tell(run, outcome)
        else:
            self._study.note_seed(run, active.seed, outcome.points)
            self._open.add(run.number)
        if self._failed >= FAILURES:
            raise self._useless(f"{self._failed} runs failed", run)

    def _stop_early(self, active: ActiveRun, points: Sequence[Point]) -> None:
        """Stop a run whose new points are worse than other runs' at the same cost."""
        for score, cost, _ in points:
            worth = self._study.settings.worth(score)
            if active.early_stop and active.early_stop.should_stop(cost, worth):
                what = f"a score of {score:.3f} after {cost:.0f} s"
                active.run.stop(f"{what} is worse than other runs at that cost")
                return

    def _useless(self, what: str, run: FrozenTrial) -> UserError:
        """Return the error of a sweep in which all of the last runs failed."""
        fault = self._study.find(run.number).user_attrs[FAULT]
        return UserError(
            f"the last {what}; run {self._study.ordinal(run)}: {fault}",
            "fix the cause and use --resume; train starts a single run",
        )

    def _leave(self, active: ActiveRun) -> None:
        self._active.remove(active)
        self._free = sorted([*self._free, active.slot])

    def _fail(self, run: FrozenTrial, fault: str) -> None:
        """Record that a run failed, and end its other processes."""
        self._open.discard(run.number)
        for other in [each for each in self._active if each.trial.number == run.number]:
            other.run.end()
            self._leave(other)
        self._tell(run, Outcome([], fault))

    def _tell(self, run: FrozenTrial, outcome: Outcome) -> None:
        self._study.tell(run, outcome)
        self._ended(self._study.find(run.number))
