"""What recurrences share that multiply their state with a matrix at every step."""
