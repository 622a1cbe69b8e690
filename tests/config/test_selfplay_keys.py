"""[selfplay], and what [vec] says of opponents: whose rules, how many, and what is refused."""

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.trainer_choice import WITHOUT_OPPONENTS, trainer_note, unread
from puffer_mlx.errors import UserError

SIZES = ["--vec.total-agents=2048", "--policy.num-layers=1"]
BY_4 = [*SIZES, "--selfplay.enabled=1", "--vec.num-frozen-banks=2", "--vec.frozen-bank-pct=0.2"]
BY_5 = [*SIZES, "--selfplay.enabled=1", "--vec.num-policies=4", "--vec.hist-policy-percent=0.5"]

FILE_4 = """
[base]
env_name = connect4
[vec]
total_agents = 4096
num_buffers = 2
num_threads = 16
num_frozen_banks = 4
frozen_bank_pct = 0.05
frozen_bank_hidden_size = 128
frozen_bank_num_layers = 4.2
[selfplay]
enabled = 1
max_size = 32
swap_winrate = 0.75
min_games = 4_096
elo_init = 1000
elo_k = 32.0
seed = 7
snapshot_interval = 250_000_000
opp_timeout_steps = 5e8
[train]
beta1 = 0.9
"""
FILE_5 = """
[base]
env_name = connect4
reset_every_horizon = 0  # as everywhere
[vec]
num_policies = 3 ; two opponents
hist_policy_hidden_size = 0
hist_policy_num_layers = 0
hist_policy_percent = 0.25
[selfplay]
enabled = true
max_size = 8.9
seed = 7
opp_timeout_steps = 100_000_000
eval_pool_size = 4
eval_games = 1024
eval_bot_games = 100
eval_bots = 0, 1, 2 # three of them
eval_bot_envs = 64
eval_bot_threads = 2
[bot_eval]
opponent = 1
"""


@pytest.mark.parametrize(
    ("text", "rules", "opponents", "part"), [(FILE_4, 4, 4, 0.05), (FILE_5, 5, 2, 0.25)]
)
def test_upstreams_files_with_self_play_load_unchanged(here, text, rules, opponents, part):
    (here / "toy.ini").write_text(text)
    config = c.load("toy.ini")
    assert (config.train.algorithm, config.selfplay_rules) == (f"puffer{rules}",) * 2
    assert (config.opponents, config.opponents_part) == (opponents, part)
    assert unread(config) == []
    assert config.unused == ([] if rules == 4 else ["bot_eval.opponent"])  # toy is no folder of C
    play = config.selfplay
    assert (play.max_size, play.seed) == ((32, 7) if rules == 4 else (8, 7))
    if rules == 4:
        assert (play.swap_winrate, play.min_games, play.elo_init, play.elo_k) == (
            0.75,
            4096,
            1e3,
            32,
        )
        assert (play.snapshot_interval, play.opp_timeout_steps) == (250_000_000, 500_000_000)
    else:
        assert (play.eval_pool_size, play.eval_games, play.opp_timeout_steps) == (4, 1024, 10**8)
        bots = play.eval_bots, play.eval_bot_games, play.eval_bot_envs, play.eval_bot_threads
        assert (bots[0].replace(" ", "").partition("#")[0], *bots[1:]) == ("0,1,2", 100, 64, 2)


@pytest.mark.parametrize(
    ("words", "rules", "opponents"),
    [
        (BY_4, "puffer4", 2),
        (BY_5, "puffer5", 3),
        ([*BY_4, "--train.algorithm", "puffer5"], "puffer4", 2),
        ([*BY_5, "--train.algorithm", "ppo"], "puffer5", 3),
        ([*BY_4, *BY_5], "puffer4", 2),
        ([*BY_4, *BY_5, "--train.algorithm", "puffer5"], "puffer5", 3),
        ([*BY_4, *BY_5, "--selfplay.rules", "puffer5"], "puffer5", 3),
        ([*BY_5, "--selfplay.enabled", "0"], "puffer5", 0),
        (["--train.algorithm", "puffer5"], "puffer5", 0),
        ([], "puffer4", 0),
    ],
)
def test_whose_rules_they_are(words, rules, opponents):
    config = c.load("connect4_two", words)
    assert (config.selfplay_rules, config.opponents) == (rules, opponents)
    said = f"; {opponents} opponents by {rules[-1]}.0's rules"
    assert trainer_note(config).endswith(said) if opponents else "rules" not in trainer_note(config)


def test_a_saved_configuration_reads_back(here):
    for words in BY_4, BY_5, []:
        config = c.load("connect4_two", [*words, "--selfplay.eval-bots=0, 1"])
        c.write_ini(config, here / "config.ini")
        again = c.load(str(here / "config.ini"))
        assert again == config and again.chosen_by == "config.ini says train.algorithm"
        assert again.selfplay.eval_bots == "0, 1" and again.unused == []


def test_keys_that_the_rules_do_not_read_are_named():
    given = "--selfplay.min-games=3", "--selfplay.max-size=3"
    assert unread(c.load("connect4_two", [*BY_4, *given, "--vec.num-policies=1"])) == [
        "vec.num_policies"
    ]
    assert unread(c.load("connect4_two", [*BY_5, *given])) == ["selfplay.min_games"]
    off = unread(c.load("connect4_two", [*BY_4, *given, "--selfplay.enabled=0"]))
    assert off == [
        *("vec.num_frozen_banks", "vec.frozen_bank_pct", "selfplay.min_games"),
        "selfplay.max_size",
    ]
    named = {*WITHOUT_OPPONENTS, "selfplay.enabled"}
    assert named >= {f"selfplay.{key}" for key in KEYS["selfplay"]}
    assert unread(c.load("connect4_two", ["--selfplay.eval-games=9"])) == ["selfplay.eval_games"]
    assert unread(c.load("connect4_two")) == []


REFUSED = {  # options -> the message, the hint
    "--vec.num-frozen-banks=0": (
        "1 needs opponents, and vec.num_frozen_banks 0 is none",
        "pct 0.25",
    ),
    "--vec.frozen-bank-pct=0": ("frozen_bank_pct 0 leaves the 2 opponents no agents", "-pct 0.25"),
    "--vec.frozen-bank-pct=0.0001": (
        "0.0001 of the 1024 agents of a buffer is less",
        "0.000977 or",
    ),
    "--vec.frozen-bank-pct=0.3": ("0.3 of each of 2 opponents is more than half", "less than 0.25"),
    "--vec.frozen-bank-hidden-size=64": ("64 isn't policy.hidden_size 128", "hidden_size 0"),
    "--vec.frozen-bank-num-layers=3": ("3 isn't policy.num_layers 1", "num_layers 0"),
    "--train.gpus=2": ("train.gpus 2: there is no self-play of several ranks", "gpus 1"),
    "--selfplay.eval-bots=a": ("eval_bots a aren't at most 16 whole numbers", "0, 1, 2"),
    "--selfplay.rules=puffer5": (
        "num_policies 1 is none (selfplay.rules puffer5 doesn't read vec.num_frozen_banks)",
        "--vec.num-policies 2",
    ),
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_can_not_be_is_one_clear_message(option):
    message, hint = REFUSED[option]
    with pytest.raises(UserError) as caught:
        c.load("connect4_two", [*BY_4, option])
    assert message in caught.value.message and "\n" not in caught.value.message
    assert hint in caught.value.hint


def test_the_same_by_the_other_rules():
    for option, message in (
        ("--vec.hist-policy-percent=0", "percent 0 leaves the 3 opponents no agents"),
        ("--vec.hist-policy-num-layers=3", "3 isn't policy.num_layers 1"),
    ):
        with pytest.raises(UserError, match=message):
            c.load("connect4_two", [*BY_5, option])
    assert c.load("connect4_two", [*BY_5, "--vec.hist-policy-num-layers=1"]).opponents == 3


def test_without_self_play_none_of_it_is_refused():
    c.load("connect4_two", [*BY_4, "--vec.frozen-bank-pct=0.9", "--selfplay.enabled=0"])


def test_what_of_env_is_different_against_a_script(here):
    """Where the environment has one: connect4_two has a bot.py, breakout has none."""
    for env, read in ("connect4_two", True), ("breakout", False):
        text = f"[base]\nenv_name = {env}\n[bot_eval]\nopening_stones = 3\nname = two"
        (here / "mine.ini").write_text(text)
        config = c.load("mine.ini")
        assert config.bot_eval == ({"opening_stones": 3.0} if read else {})
        unused = ["bot_eval.name"] if read else ["bot_eval.name", "bot_eval.opening_stones"]
        assert config.unused == unused
    assert c.load("connect4_two-openings").bot_eval == {"opening_stones": 0.0}
