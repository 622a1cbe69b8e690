"""Which of a run's checkpoints stay: the newest, and the one with the best score.

Where the run is evaluated while it trains, an evaluation's score is that of the checkpoint whose
weights were evaluated; the others have none. Else a checkpoint's is what training told since the
one before.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffer_mlx.checkpoint import branches
from puffer_mlx.checkpoint.contents import write_weights
from puffer_mlx.checkpoint.folder import BEST, State
from puffer_mlx.config import Config
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish_link, remove_folder
from puffer_mlx.tracking.scores import EVALUATION, SCORE, metric, sign


class CheckpointManager:
    """Saves a run's checkpoints, and keeps the newest and the best.

    Args:
        folder: the run's.
        config: its configuration; ``[sweep] metric`` and ``goal`` say what is best.
        resumed: the checkpoint that the run goes on from; the newest there is if None.

    Raises:
        UserError: there is no such checkpoint.
    """

    def __init__(self, folder: Path, config: Config, resumed: Path | None = None) -> None:
        self.folder, self.config = folder, config
        self._line = branches.line_from(folder, resumed) if resumed else None
        self._metric, self._sign = metric(config), sign(config)
        self._sum = self._episodes = 0.0
        self._evaluated: tuple[float, float | None] = 0, None  # after so many steps, and its score

    def observe(self, logs: dict[str, float]) -> None:
        """Take an epoch's record: a checkpoint's score is the mean since the one before.

        Of Python's environments it is the mean over the last 100 episodes, which people read. With
        ``base.eval_interval`` it is the evaluation's, if this epoch's weights were evaluated.
        """
        if self.config.base.eval_interval:
            name = EVALUATION + self._metric.removeprefix("env/")
            self._evaluated = logs["agent_steps"], logs.get(name)
        elif self._metric == "env/score" and SCORE in logs:
            self._sum, self._episodes = logs[SCORE], 1.0
        elif self._metric in logs:
            episodes = logs.get("env/n", 1.0)  # a rating is told in epochs without any, too
            self._sum += logs[self._metric] * episodes
            self._episodes += episodes

    @property
    def improved(self) -> bool:
        """Whether the last record's evaluation is better than those of all checkpoints before."""
        step, score = self._evaluated
        if score is None or not math.isfinite(score):
            return False
        line = self._line or branches.line_to(self.folder, int(step))
        now = branches.Label(self.folder, line, int(step), 0, score)
        before = (one.score for one in branches.checkpoints(self.folder) if one.led_to(now))
        return all(self._sign * (score - old) > 0 for old in before if old is not None)

    def save(
        self,
        step: int,
        spec: EnvSpec,
        policy: Policy,
        weights: Any,
        state: State | None,
        memory: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint (``write_weights``), and remove those that needn't be kept.

        Raises:
            UserError: it can't be written; those there were are still there.
        """
        score = self._sum / self._episodes if self._episodes else None
        if self.config.base.eval_interval:
            score = self._evaluated[1] if self._evaluated[0] == step else None
        self._sum = self._episodes = 0.0
        if self._line is None:
            self._line = branches.line_to(self.folder, step)
        about = self.config, spec, policy, weights, state, score, memory, self._line
        folder = write_weights(self.folder, step, *about)
        self._tidy(folder)
        return folder

    def _tidy(self, newest: Path) -> None:
        """Point at the best of the trained branch, and remove what needn't be kept."""
        labels, link = branches.checkpoints(self.folder), self.folder / BEST
        scored = [one for one in labels if one.score is not None and one.led_to(labels[-1])]
        if scored:
            best = max(scored, key=lambda one: (self._sign * (one.score or 0), one.step)).folder
            publish_link(link, best.name)
        elif link.is_symlink() and not ((old := branches.label(link)) and old.score is not None):
            link.unlink()  # what it points at has no score, or isn't there
        keep = self.config.base.checkpoint_keep
        for old in labels[:-keep] if keep else []:
            if old.folder != newest and not (link.exists() and old.folder.samefile(link)):
                remove_folder(old.folder)
