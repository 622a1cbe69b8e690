"""Around ``minimal.py``: its command line, what it refuses, and the line that it prints."""

from statistics import fmean

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.config import parse_command_line, take_notes, unused_keys_note
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.ppo import optimizers
from puffer_mlx.system.devices import select_device

OBEYED = (
    *("base.seed", "base.device", "base.family", "base.reset_state"),
    *("vec", "policy", "torch", "train", "selfplay.enabled"),
)
LEFT_OUT = {  # the values that the page stands for; others would give other weights
    **{"train.algorithm": "puffer4", "train.overlap": False, "train.precision": "fp32"},
    **{"train.rollout_device": "auto", "train.launch_steps": 0, "train.gpus": 1},
    **{"train.loss": "clipped", "selfplay.enabled": False},
    **{"train.one_launch": "auto", "train.rpo_alpha": 0.0},
}


def refuse_left_out(config):
    """Refuse a configuration that asks for what the page doesn't have.

    Raises:
        UserError: it names the first such key.
    """
    pairs = [(name, name.split("."), value) for name, value in LEFT_OUT.items()]
    others = [name for name, (s, key), value in pairs if getattr(getattr(config, s), key) != value]
    if ":" in config.train.advantage:  # a function of the user's own
        others.append("train.advantage")
    if others:
        raise UserError(f"not on this page: {others[0]}", "scripts/train.py has it")


def report(steps, rate, environments, history):
    """Print an epoch's line: the score, and the means of its minibatches' statistics."""
    means = {name: fmean(each[name].item() for each in history) for name in history[0]}
    numbers = {"score": environments.log().get("score", float("nan")), **means}
    print(f"{steps:,} steps at {rate:,.0f}/s:", end=" ")
    print(*(f"{name} {number:.3f}" for name, number in numbers.items()), sep=", ", flush=True)


def run(train, argv):
    """Call ``train(config, environments)`` as a command line says; returns the exit code.

    ``--help`` shows the options that the page uses.
    """

    @with_exit_code
    def main(argv):
        config, _ = parse_command_line(argv, used=OBEYED)
        refuse_left_out(config)
        select_device(config.base.device)
        config.vec.num_buffers = 1  # the page acts for all agents at once
        config.unused += optimizers.unused_optimizer_keys(config)
        with vec.make(config, count_cores()) as environments:
            for note in filter(None, [*take_notes(config), unused_keys_note(config)]):
                print(note)
            train(config, environments)

    return main(argv)
