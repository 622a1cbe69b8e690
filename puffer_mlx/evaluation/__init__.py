"""Play trained policies: score episodes, hold matches between players, and record videos.

`episodes.py` plays and scores whole episodes; `evaluation.py` does so for a trainer's weights.
`players.py` defines the players of a game. `games.py` plays the games of pairs.
`results.py` computes scores, intervals and Elo ratings; `ladder.py` plays opponents of known
strength. `frames.py` writes pictures and videos, `episode_videos.py` records them during a run,
and `terminal_video.py` shows them in a terminal.
"""
