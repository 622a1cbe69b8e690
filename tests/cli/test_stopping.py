"""However a run ends: everything that can be saved is saved and named in the output."""

import errno
import os
import pty
import shutil
import signal
import sys
import termios
from contextlib import ExitStack, contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest
from running import BATCH, EPOCHS, ROOT, TINY, command, lose, only, records, started
from watching import before_training

from puffer_mlx.checkpoint import tensor_files
from puffer_mlx.cli import train_run
from puffer_mlx.cli.stopping import NOTHING_SAVED, StopRequests
from puffer_mlx.cli.train import find_resumed
from puffer_mlx.display import dashboard
from puffer_mlx.system.signals import STOPPING_MESSAGE
from puffer_mlx.training.epoch_logs import EpochProgress
from puffer_mlx.training.trainer import Trainer

LONG = [*TINY, "--train.total-timesteps", "1e9"]
RARELY = ["--checkpoint-interval", "1000"]  # after the first epoch and the last
STATE = "state.safetensors"


def made(folder: Path) -> dict[int, bool]:
    """Return the epochs of a run's checkpoints: True for each from which a run can resume."""
    found = sorted(folder.glob("checkpoints/*/*/0*"))
    hidden = {path.name for path in folder.glob("checkpoints/*/*/.*")}
    assert hidden <= {".lock"}  # of a process that was killed
    return {int(path.name) // BATCH: (path / STATE).exists() for path in found}


def fail_in(monkeypatch, epoch: int, error: BaseException) -> None:
    """Let training raise an error in a given epoch, counted from 1."""

    def fail(trainer, rollout):
        if trainer.epoch + 1 == epoch:
            raise error

    before_training(monkeypatch, fail)


# ---- exceptions ----------------------------------------------------------------------------------


def test_an_unexpected_exception_loses_no_weights(script, here, monkeypatch, capsys):
    fail_in(monkeypatch, 4, KeyError("a bug"))
    with pytest.raises(KeyError):
        script.main([*TINY, *RARELY, "--train.overlap=1"])
    assert made(here) == {1: True, 3: False}
    whole, last = (only(Path(), f"checkpoints/*/*/{n * BATCH:016d}") for n in (1, 3))
    line = f"saved {last} (weights only; --load-model-path {last} starts a new run from them"
    resume = f"--resume {whole} resumes an earlier checkpoint)"
    assert f"{line}; {resume}\n" in capsys.readouterr().out
    assert len(records(here)) == 3

    monkeypatch.undo()
    monkeypatch.chdir(here)
    for words in (["--load-model-path", str(last)], ["--resume", str(whole)]):
        assert script.main([*TINY, *words]) == 0  # the line promises no more than there is


def test_resume_names_newer_weights_that_it_leaves_behind(script, here, monkeypatch, capsys):
    """``latest`` is the newest whole checkpoint, here of an older run."""
    assert script.main([*TINY, "--stop-at", str(BATCH)]) == 0
    with monkeypatch.context() as failing:
        fail_in(failing, 4, KeyError("a bug"))
        with pytest.raises(KeyError):
            script.main([*TINY, "--checkpoint-interval", "0"])
    whole, newer = only(Path(), f"*/*/*/{BATCH:016d}"), only(Path(), f"*/*/*/{3 * BATCH:016d}")
    capsys.readouterr()
    assert script.main([*TINY, "--resume", "latest"]) == 0
    out = capsys.readouterr().out
    assert f"resuming {whole} after 1 epoch\n" in out
    assert f"{newer} is newer, but has weights only, which --resume can't use" in out
    assert f"--load-model-path {newer} starts a new run from them\n" in out
    assert script.main([*TINY, "--resume", "latest"]) == 0
    assert "weights only" not in capsys.readouterr().out  # this run is the newest one


def test_resume_latest_stays_with_the_run_that_it_locked(script, here, monkeypatch):
    """Another run may save a checkpoint before the lock is held."""
    assert script.main([*TINY, "--stop-at", str(BATCH)]) == 0
    folder = only(Path(), f"*/*/*/{BATCH:016d}")

    @contextmanager
    def lock_run(run):
        shutil.copytree(run, run.with_name("9" * 13))
        yield

    monkeypatch.setattr("puffer_mlx.checkpoint.folder.lock_run", lock_run)
    with ExitStack() as held:
        resumed, newest = find_resumed("latest", TINY[:1], held)
    assert (resumed.folder, newest) == (folder, folder)


def test_a_run_that_a_gpus_driver_ended_resumes_in_smaller_minibatches(
    script, here, monkeypatch, capsys
):
    fail_in(monkeypatch, 4, RuntimeError("[METAL] Command buffer execution failed: x"))
    assert script.main([*TINY, *RARELY, "--train.overlap=1"]) == 2
    assert made(here) == {1: True, 3: True}
    last = only(Path(), f"checkpoints/*/*/{3 * BATCH:016d}")
    out, error = capsys.readouterr()
    assert f"saved {last}\n" in out and len(records(here)) == 3
    assert error.startswith("error: macOS ended the GPU's training twice")
    assert "hint: a smaller --train.minibatch-size" in error and len(error.splitlines()) == 2

    monkeypatch.undo()
    monkeypatch.chdir(here)
    half = ["--train.minibatch-size", "8"]
    assert script.main([TINY[0], "--resume", str(last), *half]) == 0
    assert made(here)[EPOCHS] and len(records(here)) == EPOCHS + 1  # an evaluation


def test_weights_are_saved_when_the_state_cannot_be(script, here, monkeypatch, capsys):

    def state(_):
        raise RuntimeError("[METAL] Command buffer execution failed: x")

    def fail(trainer, _):
        if trainer.epoch == 3:
            monkeypatch.setattr(Trainer, "state", state)
            state(trainer)

    before_training(monkeypatch, fail)
    assert script.main([*TINY, *RARELY]) == 2
    assert made(here) == {1: True, 3: False}
    assert "(weights only" in capsys.readouterr().out


def test_errors_outside_of_epochs_change_no_checkpoint(script, here, monkeypatch, capsys):
    with monkeypatch.context() as first:
        fail_in(first, 1, KeyError("a bug"))
        with pytest.raises(KeyError):
            script.main(TINY)
    assert made(here) == {} and NOTHING_SAVED in capsys.readouterr().out

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(train_run, "evaluate_final_weights", fails)
    with pytest.raises(ZeroDivisionError):
        script.main([*TINY, *RARELY])
    assert made(here) == {1: True, EPOCHS: True}
    assert "(weights only" not in capsys.readouterr().out


def test_a_failed_save_is_named_and_the_first_exception_stays(script, here, monkeypatch, capsys):
    real, calls = tensor_files.write_tensors, []

    def full(path, *arguments):
        calls.append(path)
        if len(calls) > 2:  # of the first checkpoint: weights, state
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *arguments)

    monkeypatch.setattr(tensor_files, "write_tensors", full)
    fail_in(monkeypatch, 4, KeyError("a bug"))
    with pytest.raises(KeyError):
        script.main([*TINY, *RARELY])
    (first,) = Path().glob("checkpoints/*/*/0*")
    out = capsys.readouterr().out
    assert (
        "not saved: can't write " in out
        and f"No space left on device; last checkpoint: {first}\n" in out
    )


def test_a_stop_in_a_long_epoch_says_when_it_ends():
    class Long:
        epoch, stop = 11, False
        progress: EpochProgress | None = EpochProgress(12.0, 60.0, "rollout", 0.2)

    outside = StopRequests()
    assert outside.stop() is None and outside.stopped  # before there is a trainer
    outside.trainer = trainer = Long()  # pyright: ignore
    assert outside.stop() == "stops after this epoch, in about 48s; again to stop at once"
    assert trainer.stop
    for soon in (
        None,
        EpochProgress(55.0, 60.0, "rollout", 0.9),
        EpochProgress(55.0, 0.0, "rollout", 0.1),
    ):
        Long.progress = soon
        assert outside.stop() is None


def test_an_environment_that_closes_descriptors_ends_training_with_a_message(tmp_path):
    python = f"{ROOT}/tests/envs/python/gym_faults.py:Faulty"
    words = command("train", *TINY, *RARELY, "--vec.backend", "sync")
    words[words.index("squared")] = python
    words.remove("--env.size")
    words.remove("3")
    words += ["--env.fault", "closes descriptors", "--env.limit", "20", "--env.at", "19"]
    words += ["--vec.seed", "2"]
    with started(words, tmp_path) as process:
        code, out, err = process.end()
    assert code == 2
    assert err.startswith("error: code in this process closed open files")
    assert len(err.splitlines()) == 2 and "Traceback" not in out


# ---- standard output -----------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_the_run_after_its_epoch(script, here, monkeypatch, capsys):
    """``train.py breakout | head -2``."""
    lose(monkeypatch, errno.EPIPE, after=5)
    monkeypatch.setattr(dashboard, "LINE_INTERVAL", 0.0)  # a line for each epoch
    assert script.main([*LONG, *RARELY]) == 141
    (last, whole) = [*made(here).items()][-1]
    assert whole and last == len(records(here)) < 10
    first, saved, log = capsys.readouterr().err.splitlines()
    assert first == "the reader of standard output ended: stopping after this epoch"
    assert saved.endswith(f"{last * BATCH:016d}") and log.startswith("log ")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert script.main(["squared", "--resume", "latest", "--stop-at", "1"]) == 0


def test_a_run_goes_on_without_standard_output(script, here, monkeypatch, capsys):
    """On a full disk, and after its terminal was closed (nohup, disown)."""
    lose(monkeypatch, errno.ENOSPC, after=3)
    assert script.main(TINY) == 0
    assert made(here)[EPOCHS] and len(records(here)) == EPOCHS + 1
    first, saved, _ = capsys.readouterr().err.splitlines()
    expected = "can't write standard output: No space left on device; the run and its log continue"
    assert first == expected and saved.startswith("saved ")
    stream = lose(monkeypatch, errno.EIO, after=5)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert script.main(TINY) == 0
    assert made(here)[EPOCHS] and "Traceback" not in capsys.readouterr().err


def test_a_closed_terminal_ends_the_run_after_its_epoch(tmp_path):
    controller, terminal = pty.openpty()
    words = command("train", *LONG)
    words[words.index("squared")] = f"{ROOT}/tests/envs/python/gym_walk.py:Walk"
    words.remove("--env.size")
    words.remove("3")
    words += ["--vec.backend", "async"]

    def own() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        ioctl(0, termios.TIOCSCTTY, 0)

    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    with started(words, tmp_path, start_new_session=True, preexec_fn=own, **ends) as process:
        os.close(terminal)
        drawn = b""
        while b"Losses" not in drawn:
            drawn += os.read(controller, 65536)
        os.close(controller)
        code, _, _ = process.end()
    assert code == 128 + signal.SIGHUP
    (last, whole) = [*made(tmp_path).items()][-1]
    assert whole and last == len(records(tmp_path))


# ---- signals -------------------------------------------------------------------------------------

HANG = """
import ctypes, sys
from puffer_mlx.cli.train import main
from puffer_mlx.vec.native.vec import NativeVec
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
c.pthread_mutex_init(mutex, None)
real, calls = NativeVec.collect, []
def collect(*arguments):
    calls.append(1)
    if len(calls) == 4:
        print("hangs", flush=True)
        c.pthread_mutex_lock(mutex)
        c.pthread_mutex_lock(mutex)
    return real(*arguments)
NativeVec.collect = collect
sys.exit(main(sys.argv[1:]))
"""


def test_two_signals_end_an_environment_that_hangs_in_c(tmp_path):
    number = signal.SIGINT
    words = [sys.executable, "-c", HANG, *TINY, *RARELY, "--train.overlap=1"]
    with started(words, tmp_path) as process:
        process.wait_for("hangs")
        process.popen.send_signal(number)
        process.wait_for_error(STOPPING_MESSAGE)
        process.popen.send_signal(number)
        code, out, err = process.end()
    assert code == 128 + number, err
    assert err == "stopped\n"
    assert "(weights only; --load-model-path" in out
    assert f"--resume {only(tmp_path, f'*/*/*/{BATCH:016d}').relative_to(tmp_path)}" in out
    assert made(tmp_path) in ({1: True, 3: False}, {1: True, 2: False})


AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


def test_ctrl_c_during_imports_ends_a_command_quietly(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    paths = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "INTERRUPT_AT": "mlx.core"}
    with started(command("train", *TINY), tmp_path, env=environment) as process:
        assert process.end() == (130, "", "stopped\n")


def test_importing_the_package_keeps_a_programs_ctrl_c(tmp_path):
    program = tmp_path / "scripts" / "train.py"
    program.parent.mkdir()
    program.write_text(
        "import signal\nbefore = signal.getsignal(signal.SIGINT)\n"
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import puffer_mlx, puffer_mlx.cli.train\n"
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    with started([sys.executable, str(program)], tmp_path) as process:
        assert process.end() == (0, "", "")
