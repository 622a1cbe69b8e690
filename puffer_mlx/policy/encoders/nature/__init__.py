"""Three convolutions and a product: Mnih et al., 2015."""

NAME = "NatureEncoder"
