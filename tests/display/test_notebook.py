"""The notebook's figure, and the quickstart, executed with fewer steps."""

import base64
import builtins
import io
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image
from running import ROOT, TINY, files

from puffer_mlx import config, vec
from puffer_mlx.display import notebook
from puffer_mlx.display.notebook import LiveFigure, png_bytes, watch
from puffer_mlx.display.run_view import RunState
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer

QUICKSTART = ROOT / "docs" / "quickstart.ipynb"
STEPS = "6_000_000"  # that it trains; here fewer


def view(*records: dict[str, float]) -> RunState:
    shown = RunState({"Environment": "toy"}, 1000)
    for logs in records:
        shown.update(logs)
    shown.update_speed()
    return shown


def record(epoch: int, **more: float) -> dict[str, float]:
    return {"agent_steps": 100.0 * epoch, "SPS": 100.0, "epoch": epoch, **more}


EPISODES = {"env/score": 3.0, "env/n": 5.0}
PHASES = {"perf/rollout": 0.5, "perf/eval_act": 0.5, "perf/train": 0.5}


def picture(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


SELF_PLAY = {
    **{"env/elo": 1234.5, "pool/size": 12, "pool/num_banks": 2, "pool/swaps": 7.0},
    **{"pool/winrate": 0.725, "pool/opponent_elo": 1180.0, "pool/winrate_bank_0": 0.7},
}

# ---- the figure ----------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """Return a list that gets each figure that matplotlib saves."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    real = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (real(self, *a, **k), figures.append(self))
    )
    return figures


def test_the_figure_has_every_curve_and_number(drawn):
    png_bytes(
        view(
            record(1, **EPISODES),
            record(2),
            record(4, **{**EPISODES, "env/score": 7.0, "loss/total": 0.5}, **PHASES),
        )
    )
    (figure,) = drawn
    score, speed, text = figure.axes
    assert score.lines[0].get_xydata().tolist() == [[100, 3], [400, 7]]
    assert speed.lines[0].get_xydata().tolist() == [[200, 100], [400, 100]]
    assert [axes.get_xlim() for axes in (score, speed)] == [(0, 1000)] * 2
    assert score.get_ylim()[0] == speed.get_ylim()[0] == 0
    words = "\n".join(text.get_text() for text in text.texts)
    for line in (
        "environment  toy",
        "400 of 1.0K (40 %)",
        "Rollout    500 ms  50 %",
        "  act      500 ms  50 %",
        "Train      500 ms  50 %",
        "total  0.5000",
        "score  7.000",
        "n      5",
    ):
        assert line in words, line


def test_self_play_has_a_curve_of_ratings(drawn):
    played = [{**SELF_PLAY, "env/elo": elo} for elo in (0.0, 12.5, -3.0)]
    png_bytes(view(*(record(1 + i, **more) for i, more in enumerate(played))))
    png_bytes(view(record(1, **EPISODES, **{"env/elo": 3.0})))
    rating = drawn[0].axes[2]
    assert rating.lines[0].get_xydata().tolist() == [[100, 0], [200, 12.5], [300, -3]]
    assert rating.get_title("left") == "Elo -3, win rate 0.725, pool 12"
    assert len(drawn[1].axes) == len(drawn[0].axes) - 1
    words = "\n".join(text.get_text() for text in drawn[1].axes[-1].texts)
    assert "elo    3.000" in words  # an environment's own number


# ---- in a cell -----------------------------------------------------------------------------------


class Screen:
    """Stands in for IPython's display, and records the pictures shown and replaced."""

    def __init__(self, monkeypatch) -> None:
        self.shown, self.replaced = [], []
        monkeypatch.setattr(notebook, "_ipython", lambda: (self.display, self.image))
        monkeypatch.setattr(notebook, "in_notebook", lambda: True)

    @staticmethod
    def image(data: bytes, format: str) -> tuple[str, bytes]:
        return format, data

    def display(self, image, display_id=False):
        self.shown.append(image)
        return self

    def update(self, image):
        self.replaced.append(image)


@pytest.fixture
def trainer():
    settings = config.load("squared", TINY[1:])
    with vec.make(settings, 1) as environments:
        yield Trainer(settings, environments)


def test_watch_yields_every_record_and_replaces_one_picture(monkeypatch, trainer):
    screen = Screen(monkeypatch)
    monkeypatch.setattr(notebook, "REDRAW_INTERVAL", 0.0)
    monkeypatch.setattr(notebook, "MAX_DRAWING_FRACTION", 1e9)
    records = list(watch(trainer))
    assert [logs["epoch"] for logs in records] == list(range(1, trainer.config.epochs + 1))
    assert len(screen.shown) == 1 and len(screen.replaced) == len(records) - 1
    assert {format for format, _ in screen.shown + screen.replaced} == {"png"}
    first, last = picture(screen.shown[0][1]), picture(screen.replaced[-1][1])
    assert np.abs(first - last).max() > 100


@pytest.mark.parametrize("leave", ["end", "error"])
def test_the_last_record_is_drawn_however_the_loop_ends(monkeypatch, trainer, leave):
    screen = Screen(monkeypatch)
    monkeypatch.setattr(notebook, "REDRAW_INTERVAL", 1e9)
    seen = []
    monkeypatch.setattr(notebook, "png_bytes", lambda run: seen.append(run.logs["epoch"]) or b"")
    watching = watch(trainer)
    for logs in watching:
        if leave == "error" and logs["epoch"] == 3:
            break
    if leave == "error":
        with pytest.raises(KeyboardInterrupt):
            watching.throw(KeyboardInterrupt)
    watching.close()
    assert seen == [1, trainer.config.epochs if leave == "end" else 3]
    assert len(screen.shown) == len(screen.replaced) == 1


def test_an_interrupt_ends_after_the_epoch_and_watching_again_continues(monkeypatch, trainer):
    Screen(monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    epochs = []
    for logs in watch(trainer):
        epochs.append(logs["epoch"])
        if logs["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
    assert epochs == [1, 2] and signal.getsignal(signal.SIGINT) is before
    rest = [logs["epoch"] for logs in watch(trainer)]
    assert rest == list(range(3, trainer.config.epochs + 1))


def test_a_second_interrupt_ends_at_once(monkeypatch, trainer):
    Screen(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        for _ in watch(trainer):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
    assert trainer.epoch == 1 and not trainer.stop


def test_watch_works_in_a_thread_that_cannot_handle_signals(monkeypatch, trainer):
    Screen(monkeypatch)
    monkeypatch.setattr(Trainer, "__iter__", lambda self: iter([record(1)]))  # nothing is trained
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: [*watch(trainer)]).result() == [record(1)]


def test_drawing_takes_only_a_part_of_the_time(monkeypatch):
    Screen(monkeypatch)
    clock = [0.0]

    def draw(_):
        clock[0] += 2.0
        return b""

    monkeypatch.setattr(notebook.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(notebook, "png_bytes", draw)
    figure, drawn = LiveFigure(RunState({}, 10)), []
    for epoch in range(100):
        before = clock[0]
        figure.update(record(epoch))
        drawn.append(clock[0] > before)
        clock[0] += 1.0
    assert drawn[0] and 4 <= sum(drawn) <= 6  # 2 s of 22


def test_outside_a_notebook_watch_is_the_dashboard(trainer, capsys):
    records = list(watch(trainer))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Environment squared, Parameters 1.2K, Agents 8, Device")
    total = trainer.config.epochs * trainer.config.batch_size
    assert lines[-1].startswith(f"{total} of {total} steps | ") and len(records) > 1


def test_a_missing_library_is_an_error_before_training(monkeypatch, trainer):
    real, missing = builtins.__import__, "matplotlib"

    def without(name, *args, **how):
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *args, **how)

    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=rf"need {missing}, .*\n  hint: pip install 'puffer-mlx\[no"
    ):
        next(watch(trainer))
    assert trainer.epoch == 0


# ---- docs/quickstart.ipynb -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute the quickstart notebook's cells; return the notebook and its folder."""
    folder: Path = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        book = nbformat.read(QUICKSTART, as_version=4)
        install, first, *_ = (cell for cell in book.cells if cell.cell_type == "code")
        assert install.source == "%pip install --quiet 'puffer-mlx[notebook]'"  # needs no clone
        book.cells.remove(install)
        assert not any(cell.get("outputs") for cell in book.cells)  # its readers make their own
        assert first.source.count(STEPS) == 1
        first.source = first.source.replace(STEPS, "200_000")
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=120, resources=where).execute()
    return book, folder


def outputs(book, text: str) -> list:
    """Return a notebook's outputs of the only code cell that contains a text."""
    (cell,) = [c for c in book.cells if c.cell_type == "code" and text in c.source]
    return cell.outputs


def printed(book, text: str) -> str:
    """Return what the only notebook cell that contains a text printed."""
    streams = (output for output in outputs(book, text) if output.get("name") == "stdout")
    return "".join(output["text"] for output in streams)


def data(book, text: str, kind: str) -> list[bytes]:
    found = [output.get("data", {}).get(kind) for output in outputs(book, text)]
    return [base64.b64decode(item) for item in found if item]


def test_the_quickstart_saves_and_exports(executed):
    made = files(executed[1])
    assert any(name.startswith("agent/") and name.endswith("/state.safetensors") for name in made)
    assert "breakout.bin" in made


def test_the_quickstart_shows_a_live_picture_a_score_and_the_agent(executed):
    book, _ = executed
    (live,) = data(book, "progress=True", "image/png")
    assert picture(live).std() > 10
    (gif,) = data(book, "show(puffer_mlx.play(", "image/gif")
    with Image.open(io.BytesIO(gif)) as image:
        assert getattr(image, "n_frames", 1) > 100
    outs = outputs(book, "show(puffer_mlx.play(")
    (page,) = [out["data"]["text/html"] for out in outs if "text/html" in out.get("data", "")]
    assert page.startswith("<img alt=") and "data:image/gif;base64,R0lGOD" in page  # for nbconvert
    said = printed(book, "progress=True")
    assert re.search(
        r"^score [\d.]+ ± [\d.]+ \(.*\), 64 episodes, sampled actions$", said, re.MULTILINE
    )
    assert "largest difference 0" in printed(book, "export(")
    loop = printed(book, "trainer.stop = True")
    assert re.fullmatch(r"score [\d.]+ after [\d,]+ steps\n", loop)
