"""Play trained policies: score episodes, play matches, and record videos.

`episodes.py` plays and scores complete episodes; `evaluator.py` does so for a trainer's weights.
`players.py` defines players, `games.py` plays games between pairs of them, and `results.py`
computes scores, intervals and Elo ratings. `ladder.py` plays a policy against opponents of known
strength. `frames.py` writes pictures and videos, `episode_videos.py` records videos during a run,
and `terminal_video.py` shows them in a terminal.
"""
