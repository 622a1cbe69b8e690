"""A draw of segments by priority: probabilities, draw and importance weights."""
