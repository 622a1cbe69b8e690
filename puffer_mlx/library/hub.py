"""Export a policy for the Hugging Face Hub: ``export CHECKPOINT --to hub``.

The folder contains a model card (README.md with the results as metadata), the policy
(policy.safetensors, compared with the checkpoint), its configuration (config.ini), all episodes of
an evaluation (scores.json), and a GIF if the environment can be drawn. ``--push USER/NAME`` uploads
the folder with huggingface_hub and the user's login.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx import __version__, checkpoint
from puffer_mlx.checkpoint import CONFIG, Checkpoint
from puffer_mlx.config import Config, write_ini
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import main_score_name
from puffer_mlx.evaluation.frames import write_gif
from puffer_mlx.export import ExportFormat, export
from puffer_mlx.library.evaluating import evaluate, play, scores_record
from puffer_mlx.library.policy import Policy
from puffer_mlx.system.files import publish_folder, report_read_errors
from puffer_mlx.system.json_text import write_json

GIF_FRAMES = 300
FPS = 15.0  # of the GIF
CARD = "README.md"
POLICY = "policy.safetensors"
SCORES = "scores.json"
GIF = "replay.gif"
HUB_FILES = {CARD, POLICY, SCORES, GIF, CONFIG}
REPOSITORY_URL = "https://github.com/puffer-mlx/puffer_mlx"
LOGIN = "run `hf auth login`, or set HF_TOKEN"


class Score(NamedTuple):
    """A policy's score in an evaluation: mean and standard deviation over its episodes."""

    name: str  # name of the metric
    mean: float
    std: float
    episodes: int
    seed: int

    @property
    def text(self) -> str:
        """Score as text, mean and standard deviation: ``475.20 ± 12.30``."""
        return f"{self.mean:,.2f} ± {self.std:,.2f}"


def headline_score(record: dict[str, Any]) -> Score:
    """Return the most important score of an evaluation (with its mean) from the JSON record.

    Raises:
        UserError: No episode ended.
    """
    summary = record["summary"]
    if (name := main_score_name(summary)) is None:
        raise UserError("no episode of the evaluation ended, so there is no score", "longer")
    episodes = sum(round(episode["n"]) for episode in record["episodes"])
    spread = summary[name]
    return Score(name, spread["mean"], spread["std"], episodes, record["seed"])


def card_metadata(config: Config, score: Score) -> dict[str, Any]:
    """Return the metadata of a policy's model card for the Hugging Face Hub, as a dict.

    The format: https://huggingface.co/docs/hub/model-cards
    """
    environment = config.env_name.removeprefix("gym:")
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": environment, "type": environment},
        "metrics": [{"type": "mean_reward", "value": score.text, "name": score.name}],
    }
    return {
        "library_name": "puffer-mlx",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "mlx", environment],
        "model-index": [
            {"name": f"{config.torch.network} by {config.train.algorithm}", "results": [result]}
        ],
    }


def model_card(saved: Checkpoint, score: Score, picture: bool) -> str:
    """Return the text of a policy's model card (README) for the Hugging Face Hub.

    Its metadata is JSON, which is valid YAML.

    Args:
        saved: Checkpoint of the policy.
        score: Score of the policy.
        picture: True to show the GIF.
    """
    config = saved.config
    name = config.env_name
    policy = config.policy
    train = config.train
    facts = {
        f"{score.name}, mean ± deviation": f"**{score.text}** over {score.episodes:,} whole"
        f" episodes, sampled actions, seed {score.seed}",
        "trained for": f"{saved.step:,} steps of the environment",
        "seeds": f"{config.base.seed}; of the environments {config.vec.seed}",
        "trainer": f"`{train.algorithm}`, {train.optimizer}, learning rate {train.learning_rate:g}",
        "network": f"`{config.torch.network}`, dialect `{policy.dialect}`; width"
        f" {policy.hidden_size}, layers {policy.num_layers}",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    image = f"\n![The agent plays]({GIF})\n" if picture else ""
    return f"""---
{json.dumps(card_metadata(config, score), indent=1, ensure_ascii=False)}
---

# {name}

A policy for `{name}`, trained with [puffer_mlx]({REPOSITORY_URL}) {__version__}.
{image}
| | |
| --- | --- |
{rows}

One seed: others may score higher or lower. `{SCORES}` has every episode.

## Use it

```sh
pip install 'git+{REPOSITORY_URL}'
puffer-mlx evaluate {CONFIG} {POLICY}   # plays, and scores
puffer-mlx train {CONFIG}                         # the same run again
```

`{CONFIG}` is the run's complete configuration. What the environment needs has to be installed. If
it names code, read that code, then add `--allow-code`.
"""


def write_hub_folder(
    saved: Checkpoint, folder: Path, out: Path, episodes: int, picture: bool, allow_code: bool
) -> Score:
    """Evaluate a policy and write a folder for the Hugging Face Hub. Returns the policy's score.

    Args:
        saved: Checkpoint to export.
        folder: Folder of the checkpoint, with the recorded observations.
        out: Folder to write. A folder that this command wrote earlier is replaced.
        episodes: Episodes of the evaluation.
        picture: True to record a GIF (needs the ``gif`` extra and a drawing function).
        allow_code: True to run code that only the checkpoint names.

    Raises:
        UserError: ``out`` contains other files, the policy can't be exported or evaluated, no
            episode ends, or the checkpoint names code that isn't allowed.
    """
    out = Path(os.path.realpath(out)) if out.is_symlink() else out
    refuse_other_files(out)
    config = replace(saved.config, allow_code=allow_code)
    config = replace(config, base=replace(config.base, device="cpu"))
    policy = Policy.of_checkpoint(saved._replace(config=config))
    with publish_folder(out) as temporary:
        format_ = ExportFormat("safetensors")
        recorded = checkpoint.recorded(folder)
        export(saved, format_, temporary / POLICY, recorded)
        write_ini(saved.config, temporary / CONFIG)
        scores = evaluate(policy, episodes=episodes, deterministic=False)
        record = scores_record(policy, POLICY, scores)
        score = headline_score(record)
        write_json(record, temporary / SCORES)
        if picture:
            write_gif(play(policy, steps=GIF_FRAMES), temporary / GIF, FPS)
        (temporary / CARD).write_text(model_card(saved, score, picture), encoding="utf-8")
    return score


def refuse_other_files(out: Path) -> None:
    """Raise a UserError if the folder to export to contains files of other origin.

    Raises:
        UserError: ``out`` is a file or contains other files.
    """
    hint = "name a new folder with --out"
    if not out.is_dir():
        if out.exists():
            raise UserError(f"{out} is a file, expected a folder", hint)
        return
    with report_read_errors(out):
        names = {path.name for path in out.iterdir()}
    other_files = names - HUB_FILES
    if not {POLICY, SCORES} <= names:  # not a complete export
        other_files = other_files or names
    if other_files:
        first_names = ", ".join(sorted(other_files)[:3])
        message = f"{out} contains files that this command didn't write: {first_names}"
        raise UserError(message, hint)


def push(folder: Path, repository: str) -> str:
    """Upload a folder to the Hugging Face Hub with the user's login. Returns its URL.

    Args:
        folder: Folder written by ``write_hub_folder``.
        repository: USER/NAME on the Hub.

    Raises:
        UserError: huggingface_hub is missing, the user isn't logged in, or the Hub refuses.
    """
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        from huggingface_hub.errors import HfHubHTTPError  # pyright: ignore
    except ImportError:
        raise UserError(
            "huggingface_hub is not installed", "pip install 'puffer-mlx[hub]'"
        ) from None
    if huggingface_hub.get_token() is None:
        raise UserError("not logged in to the Hugging Face Hub", LOGIN)
    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, exist_ok=True)
        hub.upload_folder(folder_path=folder, repo_id=repository)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"the upload to {repository} failed: {reason}", LOGIN) from None
    return f"https://huggingface.co/{repository}"
