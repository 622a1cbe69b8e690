"""The loss by closed form: its numbers and gradients in one pass over the samples, on a GPU."""
