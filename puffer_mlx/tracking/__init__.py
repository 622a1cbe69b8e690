"""What a run tells of itself, epoch by epoch: lines of JSON, and the score people read."""
