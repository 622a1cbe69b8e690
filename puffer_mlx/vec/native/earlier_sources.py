"""Sources of our environments that earlier versions had, with the same rules and the same struct.

States are refused where an environment's sources are others than those that saved them: nobody can
tell what a change does. Of these changes we know that they do nothing to a state, and nothing to
what follows from it: every trajectory is the same to the bit.
"""

# Today's digest (``sources.sources_digest``) -> earlier ones: rules that a GPU runs, 2026-11-22.
EARLIER: dict[str, frozenset[str]] = {
    "865790bed67e1ea4481d61e8": frozenset({"8de4a599646d5a708d801f1e"}),  # breakout
    "24379440d2e35f7348730b81": frozenset({"6528370e226b5cafe7a9eb62"}),  # cartpole
    "90bc7c3c746744fe6cbc55ef": frozenset({"6738632765066ff4da9a0478"}),  # cartpole_continuous
    "daf6e32aacdd9230060b6799": frozenset({"a70e87f4cbf0cb876102a69f"}),  # catch
    "953704d220c4ea09a6836f48": frozenset({"b32c91b4e3eda3ce1d0e34d2"}),  # connect4
    "38e1cd587063571cae6bc699": frozenset({"31daed058c12d8a012dd83f1"}),  # g2048
    "9046d3e43d0da8fd8dcc18c1": frozenset({"a5de77b8bf542df0fd036805"}),  # memory
    "40d07b5bb2c50a6d3bfd8100": frozenset({"185f3f49ed993c363773e29f"}),  # squared
}


def same_state(found: object, today: object) -> bool:
    """Whether a state of sources with one digest goes on with those of another."""
    return found == today or found in EARLIER.get(str(today), frozenset())
