"""TensorBoard: event files in ``log_dir/ENV/RUN_ID/``; ``tensorboard --logdir logs`` shows them.

No network is used. A resumed run starts another file in the same folder. Its first event makes
TensorBoard discard later steps of the earlier files, so repeated steps appear once. HPARAMS is
TensorBoard's table of runs with their settings, scores and status.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import struct
import time
from pathlib import Path
from typing import Any

from puffer_mlx.system.files import relative
from puffer_mlx.tracking.trackers import VIDEO, RunResult, TrackedRun, TrackerKind, flatten_dict

HPARAM_PREFIXES = (
    "base.seed",
    "env.",
    "policy.",
    "torch.",
    "train.",
    "vec.",
)  # beginnings of the settings' names that are columns of HPARAMS
HIDDEN_METRICS = "agent_steps", "epoch"  # no charts of these: agent_steps is the x axis
FLUSH_INTERVAL = 10  # seconds between two writes to the file


class TensorBoard:
    """A run in TensorBoard: scalars per epoch, configuration, machine, and the HPARAMS table."""

    def start(self, run: TrackedRun) -> str:
        """Create the run's event file. Returns its folder."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(run.log_dir) / run.environment / run.run_id
        self._step = run.resumed_step or 0
        self._writer = EventFileWriter(str(folder), flush_secs=FLUSH_INTERVAL)
        if run.resumed_step is not None:
            session = SessionLog(status=SessionLog.START)
            self._add(run.resumed_step + 1, session_log=session)
        lines = [f"- {name}: `{text}`" for name, text in run.machine_info.items() if text]
        self._text("run", "\n".join(lines))
        self._text("configuration", f"```json\n{json.dumps(run.config, indent=1)}\n```")
        columns = {  # without lists, which HPARAMS can't compare
            name: value
            for name, value in flatten_dict(run.config).items()
            if isinstance(value, bool | int | float | str) and name.startswith(HPARAM_PREFIXES)
        }
        self._add(self._step, summary=hparams_pb(columns, trial_id=run.run_id))
        self._writer.flush()
        return relative(folder)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Write an epoch's metrics to TensorBoard as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._step = step
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if name not in HIDDEN_METRICS
        ]
        self._add(step, summary=Summary(value=values))

    def show(self, step: int, path: str) -> None:
        """Write a GIF as an image event, which browsers animate. Bytes 6 to 9 are its size."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        data = Path(path).read_bytes()
        width, height = struct.unpack("<HH", data[6:10])
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=data)
        self._add(step, summary=Summary(value=[Summary.Value(tag=VIDEO, image=image)]))

    def finish(self, result: RunResult) -> None:
        """Write the run's final scores and status, and close the event file."""
        self.log(self._step, result.scores)
        self._text("status", result.status)
        self._add(self._step, summary=_session_end(result))
        self._writer.flush()  # raises an error of the writer's thread
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))

    def _text(self, tag: str, markdown: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        metadata = create_summary_metadata(display_name=tag, description="")
        tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        value = Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
        self._add(self._step, summary=Summary(value=[value]))


def _session_end(result: RunResult) -> Any:
    """Return the summary that sets a run's status in HPARAMS.

    It is the summary that TensorBoard's hparams plugin reads at the end of a run.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = Status.STATUS_SUCCESS if result.ok else Status.STATUS_FAILURE
    ended = SessionEndInfo(status=status, end_time_secs=time.time())
    data = HParamsPluginData(session_end_info=ended)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


TRACKER = TrackerKind("tensorboard", TensorBoard)
