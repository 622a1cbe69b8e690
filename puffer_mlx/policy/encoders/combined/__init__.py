"""Images through convolutions, beside them all other numbers; a product of both."""

NAME = "CombinedEncoder"
