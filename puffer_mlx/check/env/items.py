"""List the checks of an environment in the order in which they run."""

from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.env.episodes import check_endings, check_episodes, check_log, check_resets
from puffer_mlx.check.env.gymnasium_check import run_gymnasium_checker
from puffer_mlx.check.env.inputs_outputs import (
    check_actions,
    check_observations,
    check_rewards,
    check_spaces,
)
from puffer_mlx.check.env.on_gpu import check_gpu_rules
from puffer_mlx.check.env.pictures import check_pictures
from puffer_mlx.check.env.reproducibility import check_seeds, check_state
from puffer_mlx.check.env.speed_and_training import check_speed, check_training
from puffer_mlx.check.items import Findings, Item, ok, warn


def check_loads(env: EnvUnderTest) -> Findings:
    """Check that an environment compiles or imports, and accepts its configuration."""
    full = env.full
    details = f" ({full.description})" if full.description else ""
    findings = [
        ok(
            f"{full.num_agents:,} agents in {full.num_environments:,} environments"
            f" in training{details}"
        )
    ]
    if full.unused:
        keys = ", ".join(f"env.{key}" for key in full.unused)
        hint = "remove the key, or correct its name"
        findings.append(warn(f"the environment doesn't read {keys}", hint))
    return findings


def check_steps(env: EnvUnderTest) -> str:
    """Check that an environment can be stepped with random legal actions."""
    observed = env.observed  # steps the environment
    return (
        f"{observed.steps:,} steps of {observed.agents} agents with random actions,"
        f" {observed.seconds:.1f} s"
    )


LOADED = ("loads",)
STEPPED = ("loads", "steps")
SEEDED = ("loads", "steps", "seeds")
ITEMS = (
    Item("loads", check_loads),
    Item("spaces", check_spaces, needs=LOADED),
    Item("steps", check_steps, needs=LOADED),
    Item("observations", check_observations, needs=STEPPED),
    Item("rewards", check_rewards, needs=STEPPED),
    Item("actions", check_actions, needs=STEPPED),
    Item("seeds", check_seeds, needs=STEPPED),
    Item("episodes", check_episodes, needs=STEPPED),
    Item("endings", check_endings, needs=STEPPED),
    Item("resets", check_resets, needs=STEPPED),
    Item("log", check_log, needs=STEPPED),
    Item("state", check_state, needs=SEEDED),
    Item("gpu", check_gpu_rules, needs=SEEDED),
    Item("gymnasium", run_gymnasium_checker, needs=LOADED),
    Item("pictures", check_pictures, needs=STEPPED),
    Item("speed", check_speed, needs=STEPPED),
    Item("training", check_training, needs=STEPPED),
)
