"""The main loop of a sweep: start runs in free slots, poll them, and record their results."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import Outcome, Point
from puffer_mlx.sweep.engine.study import (
    ERROR,
    FINISHED_STATES,
    OWNER,
    Study,
    process_name,
    run_processes,
    seed_curves,
)
from puffer_mlx.sweep.observations import EarlyStop
from puffer_mlx.sweep.settings import HELD_OUT_OFFSET
from puffer_mlx.sweep.training_process import STOP_TIMEOUT, ProcessIdentity, Slot, TrainingProcess
from puffer_mlx.system import verbosity
from puffer_mlx.system.signals import Interrupts

MAX_FAILURES = 10  # failed runs in a row that end a sweep
MAX_INVALID = 100  # suggestions in a row that can't be run, which end a sweep
POLL_SECONDS = 0.2  # time between two polls
OWNERLESS_SECONDS = 5.0  # time after which a run without an owner counts as abandoned

# Starts the training of a run in a slot, with the number of a seed.
# Raises UserError if the run's values are invalid.
Start = Callable[[FrozenTrial, Slot, int], TrainingProcess]


@dataclass(eq=False)
class ActiveRun:
    """A running process that trains one run of a sweep with one seed, possibly a held-out one.

    Attributes:
        early_stop: Early-stop test; None for further seeds of a run, which train to the end.
        newest: Newest point of the curve.
    """

    run: FrozenTrial
    seed: int
    slot: Slot
    process: TrainingProcess
    early_stop: EarlyStop | None
    newest: Point | None = None


class Driver:
    """Run a sweep in this process: start training processes and record their results.

    Args:
        study: Trials of the sweep.
        start: Starts a training process.
        slots: Slots, for one training process each.
        max_runs: Number of runs to finish, where each seed of a suggestion counts as one. No new
            suggestion is made after that.
        draw: Called with the active runs a few times a second.
        on_end: Called with the trial of a run that finished with all of its seeds, or with one of
            its held-out seeds.
        interrupts: Signals that end the sweep. A second signal kills its runs at once.
        pause: Seconds between two polls.
    """

    def __init__(
        self,
        study: Study,
        start: Start,
        slots: Sequence[Slot],
        max_runs: int,
        draw: Callable[[Sequence[ActiveRun]], None],
        on_end: Callable[[FrozenTrial], None],
        interrupts: Interrupts,
        pause: float = POLL_SECONDS,
    ) -> None:
        self._study = study
        self._start = start
        self._max_runs = max_runs
        self._draw = draw
        self._on_end = on_end
        self._interrupts = interrupts
        self._pause = pause
        self._free_slots = list(slots)
        self._active: list[ActiveRun] = []
        self._waiting: set[int] = set()  # numbers of runs that may get further seeds
        self._failures = 0  # failed runs in a row
        self._invalid_suggestions = 0  # suggestions in a row that can't be run

    def run(self) -> None:
        """Run the sweep until all runs and all held-out seeds are finished.

        Afterwards, also after an error, no training process is running and no trial is in the state
        RUNNING.

        Raises:
            UserError: If too many runs in a row failed.
            KeyboardInterrupt: If a signal arrived.
        """
        with self._interrupts.hold_back():  # so that every started process is recorded
            try:
                self._sweep()
            finally:
                self._stop_all()

    def _sweep(self) -> None:
        """Start and poll the sweep's training processes until no run is left."""
        unfinished = self.orphans()
        while True:
            while self._free_slots and self._start_next(unfinished):
                self._interrupts.raise_if_due()
            if not self._active:
                return
            for active in list(self._active):
                if active in self._active:  # not ended by another seed's failure
                    self._poll(active)
            self._draw(self._active)
            time.sleep(self._pause)
            self._interrupts.raise_if_due()

    def _stop_all(self) -> None:
        """Terminate all training processes, kill the slow ones, and release unfinished trials."""
        signals = self._interrupts.count
        deadline = time.monotonic() + STOP_TIMEOUT
        for active in self._active:
            active.process.stop("the sweep was ended")
        if self._active:
            limit = f"{STOP_TIMEOUT:.0f} s at most"
            verbosity.note(
                f"ending the active runs: {limit}; repeat to end them at once", error=True
            )
        while any(active.process.is_running() for active in self._active):
            if time.monotonic() > deadline or self._interrupts.count > signals:
                break
            time.sleep(self._pause)
        for active in self._active:
            active.process.end(0.0)
        self._study.release()

    # ---- starting --------------------------------------------------------------------------------

    def orphans(self) -> list[FrozenTrial]:
        """Take over the unfinished runs of sweeps that have ended, and return them.

        Training processes that a crashed sweep has left are ended.
        """
        host = process_name()[0]
        unfinished = []
        for run in self._study.runs(TrialState.RUNNING, TrialState.WAITING):
            if run.state == TrialState.WAITING:
                if self._study.take_over(run):
                    unfinished.append(run)
                continue
            owner = run.user_attrs.get(OWNER)
            began = run.datetime_start
            if owner and (owner[0] != host or ProcessIdentity(*owner[1:]).find_process()):
                continue  # another sweep is running it
            if not owner and began and time.time() - began.timestamp() < OWNERLESS_SECONDS:
                continue  # another sweep has just started it
            self._study.claim(run)  # before another process on this host takes it
            for process in run_processes(run):
                process.end()
            unfinished.append(run)
        return unfinished

    def _start_next(self, unfinished: list[FrozenTrial]) -> bool:
        """Start the sweep's next run. Returns False if none is left.

        Also returns True if the run couldn't be started.
        """
        if next_seed := self._next_seed():
            run, seed = next_seed
        elif unfinished:
            run = self._study.restart(unfinished.pop(0))
            seed = 0
        elif self._study.count_trained(*FINISHED_STATES, TrialState.RUNNING) < self._max_runs:
            run = self._study.new_run()
            seed = 0
        elif held_out := self._next_held_out():
            run, seed = held_out
        else:
            return False
        if seed == 0 and seed_curves(run):  # resumed after its first seed
            self._waiting.add(run.number)
            return True
        try:
            process = self._start(run, self._free_slots[0], seed)
        except UserError as error:
            if seed >= HELD_OUT_OFFSET:  # the search trained it, so something is missing now
                raise
            self._invalid_suggestions += 1
            self._fail(run, "; ".join(filter(None, ("not started: " + error.message, error.hint))))
            if self._invalid_suggestions >= MAX_INVALID:
                count = f"{self._invalid_suggestions} suggestions can't be run"
                raise self._repeated_failure(count, run) from None
            return True
        self._invalid_suggestions = 0
        early_stop = None
        if seed == 0:
            quantile = self._study.settings.stop_quantile
            early_stop = EarlyStop(self._study.finished_curves(), quantile)
        self._active.append(ActiveRun(run, seed, self._free_slots.pop(0), process, early_stop))
        if process.identity and seed >= HELD_OUT_OFFSET:
            self._study.record_held_out_process(run, seed - HELD_OUT_OFFSET, process.identity)
        elif process.identity:
            self._study.record_process(run, process.identity, seed)
        return True

    def _next_held_out(self) -> tuple[FrozenTrial, int] | None:
        """Return a run and one of its held-out seeds to train next.

        Returns None while this process still searches. If a crashed sweep on this host was training
        the seed, its process is ended.
        """
        if any(active.seed < HELD_OUT_OFFSET for active in self._active):
            return None
        this_process = process_name()
        for run, seed in self._study.missing_held_out_seeds():
            if holder := self._study.held_out_processes(run, seed):
                owner, process = holder
                if owner[0] != this_process[0] or ProcessIdentity(*owner[1:]).find_process():
                    continue  # another sweep or this one trains it
                if process:
                    ProcessIdentity(*process).end()
            self._study.record_held_out_process(run, seed)
            return run, HELD_OUT_OFFSET + seed
        return None

    def _next_seed(self) -> tuple[FrozenTrial, int] | None:
        """Choose a run to train with a further seed. Returns run and seed, or None.

        Runs that get no more seeds are recorded as finished.
        """
        while self._waiting:
            finished: FrozenTrial | None = None
            for run, is_rejected, is_next in self._study.seed_decisions([*self._waiting]):
                training = {each.seed for each in self._active if each.run.number == run.number}
                missing = {*range(self._study.settings.seeds)} - seed_curves(run).keys() - training
                if missing and is_next and not is_rejected:
                    return run, min(missing)
                if (is_rejected or not missing) and not training:
                    finished = run
                    break
            if finished is None:
                return None
            self._waiting.remove(finished.number)
            # This result may decide that other waiting runs get no more seeds.
            self._record(finished, Outcome(self._study.combined_curve(finished)))
        return None

    # ---- polling ---------------------------------------------------------------------------------

    def _poll(self, active: ActiveRun) -> None:
        """Read the new points of a training process, and record its result if it has ended."""
        run = active.run
        if points := active.process.poll():
            active.newest = points[-1]
            self._stop_early(active, points)
        if (outcome := active.process.outcome()) is None:
            return
        self._remove(active)
        if active.seed >= HELD_OUT_OFFSET:
            self._study.record_held_out_result(run, active.seed - HELD_OUT_OFFSET, outcome)
            self._on_end(self._study.find(run.number))
            return
        self._failures = self._failures + 1 if outcome.error else 0
        if outcome.error:
            prefix = f"with its seed {active.seed + 1}: " if active.seed else ""
            self._fail(run, prefix + outcome.error)
        elif outcome.stop_reason or self._study.settings.seeds == 1:
            self._record(run, outcome)
        else:
            self._study.record_seed(run, active.seed, outcome.points)
            self._waiting.add(run.number)
        if self._failures >= MAX_FAILURES:
            raise self._repeated_failure(f"{self._failures} runs failed", run)

    def _stop_early(self, active: ActiveRun, points: Sequence[Point]) -> None:
        """Stop a training process whose new points are worse than other runs' at the same cost."""
        for score, cost, _ in points:
            objective = self._study.settings.objective(score)
            if active.early_stop and active.early_stop.should_stop(cost, objective):
                result = f"a score of {score:.3f} after {cost:.0f} s"
                active.process.stop(f"{result} is worse than other runs at that cost")
                return

    def _repeated_failure(self, failures: str, run: FrozenTrial) -> UserError:
        """Return the error that ends a sweep after several failures in a row."""
        error = self._study.find(run.number).user_attrs[ERROR]
        return UserError(
            f"the last {failures}; run {self._study.ordinal(run)}: {error}",
            "fix the cause and use --resume; train starts a single run",
        )

    def _remove(self, active: ActiveRun) -> None:
        """Remove an ended training process from the sweep's active ones, and free its slot."""
        self._active.remove(active)
        self._free_slots = sorted([*self._free_slots, active.slot])

    def _fail(self, run: FrozenTrial, error: str) -> None:
        """Record that a run failed, and end its other training processes."""
        self._waiting.discard(run.number)
        for other in [each for each in self._active if each.run.number == run.number]:
            other.process.end()
            self._remove(other)
        self._record(run, Outcome([], error))

    def _record(self, run: FrozenTrial, outcome: Outcome) -> None:
        """Record the result of an ended run in the sweep's study, and call ``on_end``."""
        self._study.record_outcome(run, outcome)
        self._on_end(self._study.find(run.number))
