"""PettingZoo's parallel environments: each agent is a row."""
