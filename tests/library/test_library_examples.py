"""The programs of examples/library and the code of docs/library.md run, with expected output."""

import re
import runpy
import warnings

import mlx.core as mx
import pytest
from running import ROOT

EXAMPLES = ROOT / "examples" / "library"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
EXPECTED_OUTPUT = {
    "auxiliary_loss": r"loss/reconstruction: from [1-9]\.\d+ to 0\.[0-4]\d+\n"
    r"env/score: from \d\.\d+ to [1-9]\d+\.\d+\n",
    "custom_metric": r"stopped after [\d,]+ steps, tilt [0-2]\.\d degrees\nscore [\d.]+ ± .*\n",
    "custom_network": r"score ([2-5]\d\d) .* 8 episodes, deterministic\n",
    "learning_rates": r"0\.0001: score .*\n0\.001: score .*\n0\.01: score .*\nbest: 0\.\d+\n",
    "pictures": r"score .* 8 episodes, deterministic\nwrote cartpole.gif\n",
}


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    """Let pygame draw without a display, and restore MLX's device."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    device = mx.default_device()
    yield
    mx.set_default_device(device)


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES.glob("*.py")])
def test_an_example_prints_its_result(here, capsys, monkeypatch, name):
    monkeypatch.syspath_prepend(EXAMPLES)  # as if it were started there
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.fullmatch(EXPECTED_OUTPUT[name], capsys.readouterr().out)
    if name == "pictures":
        assert (here / "cartpole.gif").read_bytes()[:4] == b"GIF8"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_of_the_documentation_runs(here, capsys, number):
    text = BLOCKS[number]
    with warnings.catch_warnings():
        exec(compile(text, f"docs/library.md:{number}", "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    if "# score 500" in text:
        assert re.fullmatch(r"score (4[5-9]\d|500)\S* ± .*, 21 episodes, deterministic\n", out)
    if "stopped after" in text:
        assert int(out.split()[2]) < 200_000
    if "callback(logs)" in text:
        assert 1 < len(out.splitlines()) < 100_000 // 512
    if "policy.onnx" in text:
        assert 0 <= float(out) <= 1e-5 and (here / "policy.onnx").is_file()
