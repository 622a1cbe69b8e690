"""PufferLib 5.0's log: ``log_dir/ENV/RUN_ID.ini``, the configuration and a run's curves.

After the line ``# PufferLib log v1`` the configuration, in 5.0's names, and a section [metrics]:
``key = v1,...,vP``, P being ``[sweep] downsample``. The first P - 1 are the means of parts of the
run, the last one repeated where the run is too short for them; the last is the final record's. The
keys are the final record's, but for the losses.

Only records with the metric count. One without, where no episode ended, brings the time and the
steps of the one before up to date, as upstream's.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from puffer_mlx.config.compatibility import NAMES_OF_5
from puffer_mlx.config.schema import KEYS
from puffer_mlx.tracking.formats import LogFormat
from puffer_mlx.tracking.run_log import Record, RunLog, columns, means

FIRST = "# PufferLib log v1"
LONGEST = 127  # characters of a key
RENAMED = {f"{ours.section}.{ours.key}": theirs for theirs, ours in NAMES_OF_5.items()}
REMOVED = ("train.beta2", "train.eps", "train.prio_alpha", "train.prio_beta0")  # since 4.0
UPSTREAM: dict[str, dict[str, Any]] = {  # what 5.0's files say besides, and is so of every run here
    "base": {"cudagraphs": -1, "gpu_offset": 0},
}


def text(run: RunLog) -> str:
    """A run in 5.0's form of .ini files."""
    (final,) = deque(_counted(run), maxlen=1)
    parts = means(_counted(run), final["agent_steps"], run.points - 1)
    parts += parts[-1:] * (run.points - 1 - len(parts))
    final = {**final, **run.evaluation()}
    lists = {
        key: ",".join(f"{value:.17g}" for value in values)
        for key, values in columns(parts, final).items()
        if not key.startswith("loss/") and _is_key(key)
    }
    sections = {**_settings(run), "metrics": lists}
    blocks = (
        [f"[{name}]", *(f"{key} = {value}" for key, value in keys.items())]
        for name, keys in sections.items()
    )
    return "\n\n".join([FIRST, *map("\n".join, blocks)]) + "\n"


def _counted(run: RunLog) -> Iterator[Record]:
    """The records with the metric."""
    held: Record | None = None
    for record in run.epochs():
        if run.metric in record:
            if held:
                yield held
            held = record
        elif held:
            held |= {name: record[name] for name in ("uptime", "agent_steps")}
    if held:
        yield held


def _is_key(name: str) -> bool:
    """Whether 5.0's reader finds a key of this name: an environment may say anything."""
    legal = name.isprintable() and not set(name) & set("=#;[\"'")
    return legal and len(name) <= LONGEST and name == name.strip()


def _settings(run: RunLog) -> dict[str, dict[str, str]]:
    """The configuration: 5.0's sections, keys and texts."""
    sections: dict[str, dict[str, str]] = {}
    for section, key, value in _plain(run):
        name = f"{section}.{key}"
        if name in REMOVED and run.config.facts.release != "4.0":
            continue
        section, _, key = RENAMED.get(name, name).rpartition(".")
        sections.setdefault(section, {})[key] = _value(value)
    return sections


def _plain(run: RunLog) -> Iterator[tuple[str, str, Any]]:
    """Section, key and value of all that is to be said of a run, in our names."""
    settings = run.settings()
    yield "base", "env_name", settings["env_name"]
    for section in KEYS:
        for key, value in {**UPSTREAM.get(section, {}), **settings[section]}.items():
            yield section, key, value
    source = {"source": settings["source"]} if settings["source"] else {}
    others = {"bot_eval": settings["bot_eval"]} if "bot_eval" in settings else {}
    env = {"env": {**source, **settings["env"]}}
    for section, keys in {**env, **others, **settings["sweep"]}.items():
        for key, value in keys.items():
            yield _section(section), key, value


def _section(name: str) -> str:
    """A section's name: that of a key's range has the key in it, sweep.train.beta1."""
    first, _, key = name.partition(".")
    return f"{first}.{RENAMED[key]}" if key in RENAMED else name


def _value(value: Any) -> str:
    """Return a value as 5.0's reader takes it: bools are numbers, # and ; end unquoted text."""
    if isinstance(value, bool | int | float):
        return repr(int(value) if isinstance(value, bool) else value).removesuffix(".0")
    text = " ".join(str(value).split())
    quote = "'" if '"' in text else '"'
    return f"{quote}{text}{quote}" if set(text) & set("#;") else text


FORMAT = LogFormat(".ini", text)
