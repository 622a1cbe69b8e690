"""Print a tracker's files as JSON, read by the tracker's package: read_back.py NAME PATH.

``points``: a list of [step, value] for each number; ``videos``; ``config``: the run's
configuration; ``status`` of each process; ``score``: the evaluation's; ``names`` of the run. It
runs in a separate process because these packages leave threads and hooks.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import base64
import json
import sqlite3
import struct
import sys
from pathlib import Path

NAMES = "points", "videos", "config", "status", "score", "names"


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    points = {tag: [[x.step, x.value] for x in events.Scalars(tag)] for tag in tags["scalars"]}
    videos = [
        base64.b64encode(image.encoded_image_string).decode()
        for image in (events.Images("eval/video") if tags["images"] else [])
    ]
    texts = {
        tag: [x.tensor_proto.string_val[0].decode() for x in events.Tensors(tag)]
        for tag in ("configuration", "run", "status")
    }
    config = json.loads(texts["configuration"][0].removeprefix("```json").removesuffix("```"))
    score = points["final/score"][-1][1]
    return points, videos, config, texts["status"], score, texts["run"][0]


def wandb(folder):
    """Read back what wandb recorded offline, from its log files.

    The log has LevelDB's format: blocks of 32 KiB, chunks with a header of 7 bytes.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    points, config, summary, names, status = {}, {}, {}, [], []
    for path in sorted(Path(folder).glob("offline-run-*/*.wandb")):
        for data in chunks(path.read_bytes()):
            record = Record.FromString(data)
            match record.WhichOneof("record_type"):
                case "run":
                    run = record.run
                    names = [run.run_id, run.project, run.run_group, *run.tags]
                    config |= {x.key: json.loads(x.value_json) for x in run.config.update}
                case "history":
                    for item in record.history.item:
                        name = item.key or "/".join(item.nested_key)
                        value = [record.history.step.num, json.loads(item.value_json)]
                        points.setdefault(name, []).append(value)
                case "summary":
                    for item in record.summary.update:
                        name = item.key or "/".join(item.nested_key)
                        summary[name] = json.loads(item.value_json)
                case "artifact":
                    names.append(record.artifact.type)
                case "exit":
                    status.append("failed" if record.exit.exit_code else "finished")
    videos = contents(Path(folder).glob("offline-run-*/files/media/videos/**/*.gif"))
    return points, videos, config, status, summary.get("final/score"), " ".join(names)


def contents(paths):
    """Return the contents of files as base64 texts, ordered by the files' names."""
    return [base64.b64encode(path.read_bytes()).decode() for path in sorted(paths)]


def chunks(data):
    at, whole = 7, b""  # after ":W&B" and a version
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def trackio(folder):
    (path,) = Path(folder).glob("*.db")
    rows = sqlite3.connect(path).execute("SELECT run_name, step, metrics FROM metrics ORDER BY id")
    points, status = {}, []
    for run, step, metrics in rows:
        names = f"{path.stem} {run}"
        for name, value in json.loads(metrics).items():
            if name == "status":
                status.append(value)
            else:
                points.setdefault(name, []).append([step, value])
    ((text,),) = sqlite3.connect(path).execute("SELECT config FROM configs")
    flat = json.loads(text)
    videos = contents(Path(folder).glob("media/*/*/*/*.gif"))
    config = {"train": {"gamma": flat["train.gamma"]}}
    score = points["final/score"][-1][1]
    return points, videos, config, status, score, f"{names} {flat['_Group']}"


if __name__ == "__main__":
    found = globals()[sys.argv[1]](sys.argv[2])
    print(json.dumps(dict(zip(NAMES, found, strict=True))))
