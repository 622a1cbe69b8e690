"""What a person sees of a run: dashboard, notebook, frames, and advice on what is slow."""
